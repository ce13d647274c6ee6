// @ts-check
/** Asks for a job's figures while the page's other modules are still on their way. */

import { askEarly } from "./figures.mjs";

askEarly(location.pathname.split("/")[2] ?? "");
