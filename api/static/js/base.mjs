// @ts-check
/** What every page does. */

import { wireCopyButtons } from "./copy.mjs";
import { keepMoments } from "./moments.mjs";

wireCopyButtons(document);
keepMoments();
