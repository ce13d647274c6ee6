"""One module per resource of the HTTP service.

- stores_of: the stores of the running application
- jobs: jobs, their trials and fronts
- devices: the devices that jobs ran on
- health: whether the service and its database are up
"""
