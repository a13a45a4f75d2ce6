// Shapes of well-known models by name, as the config.json of each.
#pragma once

const char *shapes_find(const char *name); // "qwen3-4b", "Qwen3-4B"; NULL: none
const char *shapes_names(void);            // a list for help and errors
