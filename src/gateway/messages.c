// The messages of a chat. The template gets them as the client wrote them; here is checked that it can get nothing
// which it would have to ignore.
#include "gateway/request.h"

#include <stdio.h>
#include <string.h>

static int check_part(const json_t *part, const char *where, struct api_error *e) {
    char param[96];
    if (!json_is_object(part)) {
        return errors_set(e, 400, "invalid_type", where, "'%s' must be an object, not %s", where,
                          request_type_name(part));
    }
    const json_t *type = json_object_get(part, "type");
    snprintf(param, sizeof param, "%s.type", where);
    if (!json_is_string(type)) {
        return errors_set(e, 400, "invalid_type", param, "'%s' must be a string", param);
    }
    if (strcmp(json_string_value(type), "text") != 0) {
        return errors_set(e, 400, "unsupported_value", param,
                          "'%s' is \"%s\": only parts of type \"text\" are supported", param, json_string_value(type));
    }
    snprintf(param, sizeof param, "%s.text", where);
    if (!json_is_string(json_object_get(part, "text"))) {
        return errors_set(e, 400, "invalid_type", param, "'%s' must be a string", param);
    }
    if (json_object_size(part) > 2) {
        return errors_set(e, 400, "unknown_parameter", where, "'%s' may have the keys type and text only", where);
    }
    return ERR_OK;
}

static int check_content(const json_t *message, const char *where, bool may_lack, struct api_error *e) {
    char param[64], part_name[80];
    snprintf(param, sizeof param, "%s.content", where);
    const json_t *content = json_object_get(message, "content");
    if (json_is_string(content)) return ERR_OK;
    if (!content || json_is_null(content)) {
        if (may_lack) return ERR_OK;
        return errors_set(e, 400, "missing_required_parameter", param, "'%s' is missing: a string is needed", param);
    }
    if (!json_is_array(content)) {
        return errors_set(e, 400, "invalid_type", param, "'%s' must be a string or an array of text parts, not %s",
                          param, request_type_name(content));
    }
    size_t i;
    json_t *part;
    json_array_foreach(content, i, part) {
        snprintf(part_name, sizeof part_name, "%s[%zu]", param, i);
        if (check_part(part, part_name, e)) return ERR_USAGE;
    }
    return ERR_OK;
}

// What a message may hold besides role and content, and in which form.
enum message_value { VALUE_STRING, VALUE_ARRAY, VALUE_INERT };
static const struct message_key {
    const char *name;
    enum message_value value;
} message_keys[] = {
    {"name", VALUE_STRING},         {"tool_call_id", VALUE_STRING}, {"reasoning_content", VALUE_STRING},
    {"tool_calls", VALUE_ARRAY},    {"refusal", VALUE_INERT},       {"audio", VALUE_INERT},
    {"function_call", VALUE_INERT}, {"annotations", VALUE_INERT},
};

static int check_key(const char *key, const json_t *v, const char *where, struct api_error *e) {
    if (strcmp(key, "role") == 0 || strcmp(key, "content") == 0) return ERR_OK;
    char param[112];
    snprintf(param, sizeof param, "%s.%.48s", where, key);
    const struct message_key *known = NULL;
    for (size_t i = 0; i < sizeof message_keys / sizeof *message_keys; i++) {
        if (strcmp(message_keys[i].name, key) == 0) known = &message_keys[i];
    }
    if (!known) return errors_set(e, 400, "unknown_parameter", param, "Unknown parameter: '%s'", param);
    if (json_is_null(v)) return ERR_OK;
    bool right = false;
    switch (known->value) {
    case VALUE_STRING:
        right = json_is_string(v);
        break;
    case VALUE_ARRAY:
        right = json_is_array(v);
        break;
    case VALUE_INERT:
        right = json_is_array(v) && json_array_size(v) == 0;
        break;
    }
    if (right) return ERR_OK;
    if (known->value == VALUE_INERT) {
        return errors_set(e, 400, "unsupported_parameter", param, "'%s' is not supported; leave it out", param);
    }
    return errors_set(e, 400, "invalid_type", param, "'%s' must be %s, not %s", param,
                      known->value == VALUE_STRING ? "a string" : "an array", request_type_name(v));
}

static int check_message(const json_t *message, const char *where, struct api_error *e) {
    char param[64];
    if (!json_is_object(message)) {
        return errors_set(e, 400, "invalid_type", where, "'%s' must be an object, not %s", where,
                          request_type_name(message));
    }
    snprintf(param, sizeof param, "%s.role", where);
    const json_t *role = json_object_get(message, "role");
    if (!json_is_string(role)) {
        return errors_set(e, 400, "invalid_type", param, "'%s' must be system, user, assistant or tool", param);
    }
    const char *name = json_string_value(role);
    if (strcmp(name, "system") != 0 && strcmp(name, "user") != 0 && strcmp(name, "assistant") != 0 &&
        strcmp(name, "tool") != 0) {
        return errors_set(e, 400, "invalid_value", param, "'%s' is \"%.64s\": must be system, user, assistant or tool",
                          param, name);
    }
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)message, key, v) {
        if (check_key(key, v, where, e)) return ERR_USAGE;
    }
    return check_content(message, where, strcmp(name, "assistant") == 0, e);
}

int request_check_messages(const json_t *messages, struct api_error *e) {
    if (!json_is_array(messages)) {
        return errors_set(e, 400, "invalid_type", "messages", "'messages' must be an array, not %s",
                          request_type_name(messages));
    }
    if (json_array_size(messages) == 0) {
        return errors_set(e, 400, "invalid_value", "messages", "'messages' is empty: one message at least is needed");
    }
    char where[40];
    size_t i;
    json_t *message;
    json_array_foreach(messages, i, message) {
        snprintf(where, sizeof where, "messages[%zu]", i);
        if (check_message(message, where, e)) return ERR_USAGE;
    }
    return ERR_OK;
}
