// Every queue, buffer and table is born with its limit: here. A length from outside is compared with one of these
// before it is believed.
#pragma once

enum {
    LIMIT_NODES = 64,           // nodes of one cluster
    LIMIT_STAGES = 64,          // stages of one route
    LIMIT_LAYERS = 512,         // layers of a model
    LIMIT_SEQS = 256,           // sequences running at once: slots on every stage
    LIMIT_QUEUED = 4096,        // requests that wait for admission
    LIMIT_STEP_ROWS = 2048,     // rows (tokens) of one step
    LIMIT_STEPS_IN_FLIGHT = 64, // steps on their way through the route
    LIMIT_BLOCK_TOKENS = 64,    // tokens of a KV block: the key block of NUMERICS 6.3
    LIMIT_CONTEXT = 1 << 20,    // tokens of a sequence
    LIMIT_TOP_K = 64,           // experts of one token
    LIMIT_SEQ_BLOCKS = LIMIT_CONTEXT / LIMIT_BLOCK_TOKENS,
    LIMIT_HIDDEN = 1 << 16, // width of the residual stream
    LIMIT_HEAD_DIM = 256,
    LIMIT_VOCAB = 1 << 20,
    LIMIT_FRAME_CONTROL = 1 << 20, // bytes of the protobuf part of a frame
    LIMIT_FRAME_PAYLOAD = 1 << 28, // bytes of the tensor part of a frame
    LIMIT_HTTP_BODY = 8 << 20,     // bytes of one request body
    LIMIT_STOP_STRINGS = 16,
    LIMIT_STOP_BYTES = 256,       // bytes of one stop string
    LIMIT_STOP_IDS = 32,          // end tokens of a model
    LIMIT_CHOICES = 16,           // n of one request
    LIMIT_CONFIG_BYTES = 1 << 20, // config.json, generation_config.json
    LIMIT_TOKENIZER_BYTES = 64 << 20,
    LIMIT_SAFETENSORS_HEADER = 100 << 20, // what the reference implementation allows
    LIMIT_TENSORS = 1 << 20,
    LIMIT_LOOP_POSTS = 65536,      // functions that wait to run on a loop
    LIMIT_CHUNK_BYTES = 1 << 20,   // bytes of a tensor in one frame
    LIMIT_ASK_TENSORS = 256,       // tensors of one question about the manifest
    LIMIT_BULK_ASKS = 8,           // questions of one bulk link that wait for their answer
    LIMIT_LINKS = 256,             // proven connections that a listener holds
    LIMIT_JOIN_TOKENS = 1024,      // join tokens that are not used up
    LIMIT_TOKEN_BYTES = 4096,      // bytes that one token stands for
    LIMIT_PROMPT_BYTES = 32 << 20, // a rendered prompt; the text of one call to the tokenizer
    LIMIT_PATH = 4096,
    LIMIT_TENSOR_NAME = 256,       // bytes of a tensor's name, with the NUL
    LIMIT_SHARDS = 4096,           // files of one model
    LIMIT_EXPERTS = 1024,          // of a layer
    LIMIT_FFN = 1 << 20,           // width of an MLP
    LIMIT_HTTP_CONNECTIONS = 4096, // open at once; fewer if the process may not open so many files
    LIMIT_HTTP_HEADERS = 32 << 10, // memory of one connection: request line, headers, buffers
    LIMIT_HTTP_BODIES = 256 << 20, // bytes of all request bodies in memory
    LIMIT_JSON_VALUES = 2 << 20,   // of one request body
    LIMIT_JSON_CONTAINERS = 1 << 17,
    LIMIT_ANSWER_CHOICES = 128,    // prompts of one request times n
    LIMIT_ANSWER_BYTES = 64 << 20, // text of one choice that is not streamed
    LIMIT_LINKS_UNPROVEN = 128,    // connections of a listener that have not proven who they are
    LIMIT_LINKS_OF_HOST = 16,      // of them from one address
    LIMIT_HOLDERS = 3,      // nodes that hold the same stage: the one that serves, a shadow, one that comes or goes
    LIMIT_NODE_STAGES = 16, // stages that one node holds
    LIMIT_KEEP_BYTES = 16 << 10,        // what the journal keeps of a request for the one who asked
    LIMIT_JOURNAL_RECORD = 32 << 20,    // bytes of one record of the journal
    LIMIT_JOURNAL_REQUESTS = 8192,      // requests that the journal follows
    LIMIT_ANSWERS_KEPT = 8192,          // streams that can be resumed: those in the making, and those that ended lately
    LIMIT_ANSWERS_KEPT_BYTES = 64 << 20 // tokens of those that ended
};
