/* A small libnvidia-ml.so.1 whose GPUs live in a file that processes share.
 *
 * It stands in the driver's place where a test needs more than one process: a setting outlives the process that made
 * it, as it does on a GPU. Speaks only the calls that probes/nvml.py makes. The file is WATTFRONT_FAKE_NVML_STATE; its
 * layout is mirrored in fake_library.py, and both must change together (STATE_VERSION). Signatures are nvml.h's,
 * https://docs.nvidia.com/deploy/nvml-api/, with `struct gpu *` as the handle.
 */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STATE_VERSION 1u
#define MAX_GPUS 8
#define MAX_PIDS 16

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 18,
};

enum { CLOCK_MEM = 2 };
enum { FIELD_ENERGY = 83, FIELD_AVERAGE = 185, FIELD_INSTANT = 186 };
enum { TYPE_UINT = 1, TYPE_ULLONG = 3 };

struct gpu {
    char uuid[96];
    char name[96];
    char busid[32];
    uint64_t event_bits;
    /* Energy up to since_us of CLOCK_MONOTONIC; what came after is present power times time. */
    uint64_t counted_uj;
    uint64_t since_us;
    uint64_t tick_us;
    uint64_t num_writes;
    uint32_t architecture;
    uint32_t virtualization;
    uint32_t is_persistent;
    uint32_t is_lost;
    uint32_t is_active;
    uint32_t idle_mw;
    /* At the highest clock; less in proportion at a lower one. */
    uint32_t active_mw;
    uint32_t lowest_clock_mhz;
    uint32_t highest_clock_mhz;
    uint32_t clock_step_mhz;
    uint32_t memory_clock_mhz;
    /* 0 and 0 while the clock is free. */
    uint32_t locked_min_mhz;
    uint32_t locked_max_mhz;
    uint32_t is_lock_effective;
    uint32_t limit_mw;
    uint32_t lowest_limit_mw;
    uint32_t highest_limit_mw;
    uint32_t default_limit_mw;
    /* Replaces the limit in force; 0: it is the one that is set. */
    uint32_t enforced_mw;
    int32_t temperature_c;
    /* Codes that calls answer with; 0: they work. */
    uint32_t lock_refusal;
    uint32_t reset_refusal;
    uint32_t limit_refusal;
    uint32_t counter_refusal;
    uint32_t num_pids;
    uint32_t pids[MAX_PIDS];
};

struct state {
    uint32_t version;
    uint32_t size;
    uint32_t num_gpus;
    uint32_t needs_privilege;
    struct gpu gpus[MAX_GPUS];
};

struct pci_info {
    char busid_legacy[16];
    uint32_t domain, bus, device, device_id, subsystem_id;
    char busid[32];
};

struct process_info {
    uint32_t pid;
    uint64_t memory_bytes;
    uint32_t gpu_instance, compute_instance;
};

struct temperature {
    uint32_t version, sensor;
    int32_t temperature_c;
};

struct field_value {
    uint32_t field, scope;
    int64_t timestamp_us, latency_us;
    uint32_t type, code;
    uint64_t value;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int state_file = -1;
static struct state *state;
static int num_inits;

/* A record lock belongs to a process, so a killed one lets go of it; the mutex orders the threads within one. */
static void record_lock(short kind)
{
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET};
    while (fcntl(state_file, F_SETLKW, &lock) != 0)
        ;
}

static void enter(void)
{
    pthread_mutex_lock(&mutex);
    record_lock(F_WRLCK);
}

static void leave(void)
{
    record_lock(F_UNLCK);
    pthread_mutex_unlock(&mutex);
}

static void renew_mutex(void)
{
    pthread_mutex_init(&mutex, NULL);
}

__attribute__((constructor)) static void forget_in_children(void)
{
    pthread_atfork(NULL, NULL, renew_mutex);
}

static int map_state(void)
{
    const char *path = getenv("WATTFRONT_FAKE_NVML_STATE");
    struct stat status;
    if (path == NULL || (state_file = open(path, O_RDWR | O_CLOEXEC)) < 0)
        return DRIVER_NOT_LOADED;
    if (fstat(state_file, &status) != 0 || (size_t)status.st_size != sizeof(struct state))
        return VERSION_MISMATCH;
    state = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, state_file, 0);
    if (state == MAP_FAILED) {
        state = NULL;
        return DRIVER_NOT_LOADED;
    }
    return state->version == STATE_VERSION && state->size == sizeof(struct state) ? SUCCESS : VERSION_MISMATCH;
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static uint32_t sm_clock_mhz(const struct gpu *gpu)
{
    uint32_t ceiling = gpu->highest_clock_mhz;
    if (!gpu->is_active)
        return gpu->lowest_clock_mhz;
    if (gpu->locked_max_mhz && gpu->is_lock_effective && gpu->locked_max_mhz < ceiling)
        ceiling = gpu->locked_max_mhz;
    return gpu->lowest_clock_mhz
        + (ceiling - gpu->lowest_clock_mhz) / gpu->clock_step_mhz * gpu->clock_step_mhz;
}

static uint32_t power_mw(const struct gpu *gpu)
{
    uint64_t dynamic_mw = gpu->active_mw - gpu->idle_mw;
    if (!gpu->is_active)
        return gpu->idle_mw;
    return gpu->idle_mw + (uint32_t)(dynamic_mw * sm_clock_mhz(gpu) / gpu->highest_clock_mhz);
}

static uint64_t energy_uj(const struct gpu *gpu, uint64_t until_us)
{
    uint64_t passed_us = until_us > gpu->since_us ? until_us - gpu->since_us : 0;
    return gpu->counted_uj + passed_us * power_mw(gpu) / 1000u;
}

static uint64_t energy_mj(const struct gpu *gpu)
{
    return energy_uj(gpu, now_us() / gpu->tick_us * gpu->tick_us) / 1000u;
}

/* Count what was drawn up to now, before something changes what is drawn. */
static void settle(struct gpu *gpu)
{
    uint64_t now = now_us();
    gpu->counted_uj = energy_uj(gpu, now);
    gpu->since_us = now;
}

static int begin(const struct gpu *gpu)
{
    if (num_inits == 0)
        return UNINITIALIZED;
    return gpu->is_lost ? GPU_IS_LOST : SUCCESS;
}

static int begin_setting(const struct gpu *gpu, uint32_t refusal)
{
    const char *privileged = getenv("WATTFRONT_FAKE_NVML_PRIVILEGED");
    int code = begin(gpu);
    if (code)
        return code;
    if (state->needs_privilege && (privileged == NULL || strcmp(privileged, "1") != 0))
        return NO_PERMISSION;
    return (int)refusal;
}

static int give_text(char *buffer, unsigned int size, const char *text)
{
    return snprintf(buffer, size, "%s", text) < (int)size ? SUCCESS : INSUFFICIENT_SIZE;
}

static int give(const struct gpu *gpu, unsigned int *out, uint32_t value)
{
    int code = begin(gpu);
    if (code == SUCCESS)
        *out = value;
    return code;
}

int nvmlInitWithFlags(unsigned int flags)
{
    int code = SUCCESS;
    (void)flags;
    pthread_mutex_lock(&mutex);
    if (state == NULL)
        code = map_state();
    if (code == SUCCESS)
        num_inits++;
    pthread_mutex_unlock(&mutex);
    return code;
}

int nvmlShutdown(void)
{
    int code = SUCCESS;
    pthread_mutex_lock(&mutex);
    if (num_inits > 0)
        num_inits--;
    else
        code = UNINITIALIZED;
    pthread_mutex_unlock(&mutex);
    return code;
}

const char *nvmlErrorString(int code)
{
    return code == NO_PERMISSION ? "Insufficient Permissions" : "an error of the fake driver";
}

int nvmlSystemGetDriverVersion(char *buffer, unsigned int size)
{
    return num_inits ? give_text(buffer, size, "570.86.10") : UNINITIALIZED;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (num_inits == 0)
        return UNINITIALIZED;
    *count = state->num_gpus;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct gpu **handle)
{
    if (num_inits == 0)
        return UNINITIALIZED;
    if (index >= state->num_gpus)
        return INVALID_ARGUMENT;
    *handle = &state->gpus[index];
    return begin(*handle);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct gpu **handle)
{
    if (num_inits == 0)
        return UNINITIALIZED;
    for (unsigned int index = 0; index < state->num_gpus; index++)
        if (strcmp(state->gpus[index].uuid, uuid) == 0)
            return nvmlDeviceGetHandleByIndex_v2(index, handle);
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(struct gpu *gpu, char *buffer, unsigned int size)
{
    int code = begin(gpu);
    return code ? code : give_text(buffer, size, gpu->uuid);
}

int nvmlDeviceGetName(struct gpu *gpu, char *buffer, unsigned int size)
{
    int code = begin(gpu);
    return code ? code : give_text(buffer, size, gpu->name);
}

int nvmlDeviceGetVbiosVersion(struct gpu *gpu, char *buffer, unsigned int size)
{
    int code = begin(gpu);
    return code ? code : give_text(buffer, size, "96.00.89");
}

int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci_info *info)
{
    int code = begin(gpu);
    return code ? code : give_text(info->busid, sizeof(info->busid), gpu->busid);
}

int nvmlDeviceGetArchitecture(struct gpu *gpu, unsigned int *architecture)
{
    return give(gpu, architecture, gpu->architecture);
}

int nvmlDeviceGetMigMode(struct gpu *gpu, unsigned int *current, unsigned int *pending)
{
    *pending = 0;
    return give(gpu, current, 0);
}

int nvmlDeviceGetVirtualizationMode(struct gpu *gpu, unsigned int *mode)
{
    return give(gpu, mode, gpu->virtualization);
}

int nvmlDeviceGetPersistenceMode(struct gpu *gpu, unsigned int *mode)
{
    return give(gpu, mode, gpu->is_persistent);
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *gpu, unsigned int *count, struct process_info *rows)
{
    int code = begin(gpu);
    if (code)
        return code;
    if (gpu->num_pids > (rows == NULL ? 0 : *count)) {
        *count = gpu->num_pids;
        return INSUFFICIENT_SIZE;
    }
    *count = gpu->num_pids;
    for (unsigned int row = 0; row < gpu->num_pids; row++)
        rows[row] = (struct process_info){.pid = gpu->pids[row]};
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(struct gpu *gpu, unsigned int *limit)
{
    return give(gpu, limit, gpu->enforced_mw ? gpu->enforced_mw : gpu->limit_mw);
}

int nvmlDeviceGetPowerManagementLimit(struct gpu *gpu, unsigned int *limit)
{
    return give(gpu, limit, gpu->limit_mw);
}

int nvmlDeviceGetPowerManagementDefaultLimit(struct gpu *gpu, unsigned int *limit)
{
    return give(gpu, limit, gpu->default_limit_mw);
}

int nvmlDeviceGetPowerManagementLimitConstraints(struct gpu *gpu, unsigned int *lowest, unsigned int *highest)
{
    *lowest = gpu->lowest_limit_mw;
    return give(gpu, highest, gpu->highest_limit_mw);
}

int nvmlDeviceGetTotalEnergyConsumption(struct gpu *gpu, unsigned long long *millijoules)
{
    int code = begin(gpu);
    if (code || gpu->counter_refusal)
        return code ? code : (int)gpu->counter_refusal;
    enter();
    *millijoules = energy_mj(gpu);
    leave();
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(struct gpu *gpu, unsigned int *milliwatts)
{
    return give(gpu, milliwatts, power_mw(gpu));
}

int nvmlDeviceGetFieldValues(struct gpu *gpu, int count, struct field_value *values)
{
    int code = begin(gpu);
    if (code)
        return code;
    enter();
    for (struct field_value *entry = values; entry < values + count; entry++) {
        int is_energy = entry->field == FIELD_ENERGY;
        int is_power = entry->field == FIELD_INSTANT || entry->field == FIELD_AVERAGE;
        entry->code = entry->scope == 0 && (is_energy || is_power) ? SUCCESS : NOT_SUPPORTED;
        entry->type = is_energy ? TYPE_ULLONG : TYPE_UINT;
        entry->value = is_energy ? energy_mj(gpu) : power_mw(gpu);
    }
    leave();
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(struct gpu *gpu, unsigned int kind, unsigned int *clock)
{
    return give(gpu, clock, kind == CLOCK_MEM ? gpu->memory_clock_mhz : sm_clock_mhz(gpu));
}

int nvmlDeviceGetTemperatureV(struct gpu *gpu, struct temperature *reading)
{
    reading->temperature_c = gpu->temperature_c;
    return begin(gpu);
}

int nvmlDeviceGetTemperature(struct gpu *gpu, unsigned int sensor, unsigned int *temperature)
{
    (void)sensor;
    return give(gpu, temperature, (uint32_t)gpu->temperature_c);
}

int nvmlDeviceGetCurrentClocksEventReasons(struct gpu *gpu, unsigned long long *bits)
{
    *bits = gpu->event_bits;
    return begin(gpu);
}

int nvmlDeviceGetSupportedMemoryClocks(struct gpu *gpu, unsigned int *count, unsigned int *clocks)
{
    int code = begin(gpu);
    if (code)
        return code;
    *count = 1;
    if (clocks == NULL)
        return INSUFFICIENT_SIZE;
    clocks[0] = gpu->memory_clock_mhz;
    return SUCCESS;
}

int nvmlDeviceGetSupportedGraphicsClocks(struct gpu *gpu, unsigned int memory, unsigned int *count,
                                         unsigned int *clocks)
{
    unsigned int needed = (gpu->highest_clock_mhz - gpu->lowest_clock_mhz) / gpu->clock_step_mhz + 1;
    int code = begin(gpu);
    if (code)
        return code;
    if (memory != gpu->memory_clock_mhz)
        return NOT_FOUND;
    if (clocks == NULL || *count < needed) {
        *count = needed;
        return INSUFFICIENT_SIZE;
    }
    *count = needed;
    for (unsigned int step = 0; step < needed; step++) /* highest first, as the driver does */
        clocks[step] = gpu->lowest_clock_mhz + (needed - 1 - step) * gpu->clock_step_mhz;
    return SUCCESS;
}

int nvmlDeviceSetGpuLockedClocks(struct gpu *gpu, unsigned int lowest, unsigned int highest)
{
    int code = begin_setting(gpu, gpu->lock_refusal);
    if (code)
        return code;
    if (lowest > highest || lowest < gpu->lowest_clock_mhz || highest > gpu->highest_clock_mhz)
        return INVALID_ARGUMENT;
    enter();
    settle(gpu);
    gpu->locked_min_mhz = lowest;
    gpu->locked_max_mhz = highest;
    gpu->num_writes++;
    leave();
    return SUCCESS;
}

int nvmlDeviceResetGpuLockedClocks(struct gpu *gpu)
{
    int code = begin_setting(gpu, gpu->reset_refusal);
    if (code)
        return code;
    enter();
    settle(gpu);
    gpu->locked_min_mhz = gpu->locked_max_mhz = 0;
    gpu->num_writes++;
    leave();
    return SUCCESS;
}

int nvmlDeviceSetPowerManagementLimit(struct gpu *gpu, unsigned int limit)
{
    int code = begin_setting(gpu, gpu->limit_refusal);
    if (code)
        return code;
    if (limit < gpu->lowest_limit_mw || limit > gpu->highest_limit_mw)
        return INVALID_ARGUMENT;
    enter();
    gpu->limit_mw = limit;
    gpu->num_writes++;
    leave();
    return SUCCESS;
}
