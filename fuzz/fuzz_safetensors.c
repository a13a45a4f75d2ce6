// Any bytes as a safetensors file: refused with a text, or every tensor lies inside the input.
#include "base/err.h"
#include "weights/tensors.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
        ASSERT(tensors_find(t, one->name) == one);
        ASSERT(one->data >= data && one->data <= data + size);
        ASSERT(one->bytes <= (uint64_t)(data + size - one->data));
        volatile uint8_t sink = one->bytes ? (uint8_t)(one->data[0] + one->data[one->bytes - 1]) : 0;
        (void)sink;
    }
    tensors_free(t);
    return 0;
}
