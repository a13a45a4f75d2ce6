// What a hub answers: the first byte says which layout (odd: ModelScope), the second whether a file is named; up to a
// NUL that name, then JSON. What the choice then holds must be in the listing, and no path may lead out of the folder.
#include "pull/choice.h"
#include "pull/hub.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char name[64] = "", text[300];
    if (size < 2) return 0;
    bool modelscope = data[0] & 1, named = data[1] & 1;
    data += 2;
    size -= 2;
    if (named) {
        size_t n = strnlen((const char *)data, size);
        size_t k = n < sizeof name ? n : sizeof name - 1;
        memcpy(name, data, k);
        name[k] = 0;
        data += n < size ? n + 1 : n;
        size -= n < size ? n + 1 : n;
    }
    const char *json = (const char *)data;
    struct listing l = {0};
    struct choice c;
    struct err e;
    int rc = modelscope ? listing_add_modelscope(&l, json, size, &e) : listing_add_hf(&l, json, size, &e);
    if (!rc) rc = listing_finish(&l, &e);
    for (uint32_t i = 0; i < l.n; i++)
        if (listing_check_path(l.files[i].path, NULL) || l.files[i].path[0] == '/' ||
            !strncmp(l.files[i].path, "../", 3) || strstr(l.files[i].path, "/../"))
            abort();
    if (!rc && !choice_make(&l, "o/r", named ? name : NULL, &c, &e)) {
        for (uint32_t i = 0; i < c.n; i++)
            if (c.files[i] >= l.n) abort();
        if (c.n > l.n) abort();
        choice_fini(&c);
    }
    listing_fini(&l);
    listing_string(json, size, "sha", text, sizeof text);
    listing_ids(json, size, text, sizeof text);
    if (named) hub_next_page(name, text, sizeof text);
    return 0;
}
