// Any bytes as a GGUF model: its tensors lie inside the input, its settings become a config.json that is parsed, or a
// text says why not.
#include "base/err.h"
#include "model/gguf_config.h"
#include "model/model.h"
#include "weights/dequant.h"
#include "weights/tensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_settings(struct tensors *t) {
    char *config, *generation;
    size_t config_bytes, generation_bytes;
    struct err e;
    struct hparams *h = malloc(sizeof *h);
    struct gen_defaults g;
    int rc = gguf_config_make(t, &config, &config_bytes, &generation, &generation_bytes, &e);
    ASSERT(h);
    if (!rc) {
        rc = model_parse_config(config, config_bytes, h, &e);
        if (!rc) rc = model_parse_generation(generation, generation_bytes, h, &g, &e);
        if (!rc) rc = model_fit_tensors(h, t, &e);
        free(config);
        free(generation);
    }
    ASSERT(!rc || (e.code == rc && e.text[0]));
    free(h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tensors *t;
    struct err e;
    int rc = tensors_open_memory(data, size, &t, &e);
    if (rc) {
        ASSERT(e.code == rc && e.text[0]);
        return 0;
    }
    for (uint32_t i = 0; i < tensors_count(t); i++) {
        const struct tensor *one = tensors_at(t, i);
        const struct dtype_info *info = dtype_info(one->type);
        ASSERT(one->data >= data && one->data <= data + size);
        ASSERT(one->bytes <= (uint64_t)(data + size - one->data));
        float values[256];
        if (dequant_knows(one->type) && one->bytes >= info->block_bytes)
            dequant_row(one->type, one->data, info->block_values, values);
    }
    if (tensors_gguf(t)) use_settings(t);
    tensors_free(t);
    return 0;
}
