// An intrusive doubly linked ring. A struct list stands for the whole list, or lies inside a member; the list owns
// nothing, and a member may be in as many lists as it has links. Not thread-safe.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct list {
    struct list *prev, *next;
};

// The struct of this type whose field `link` p points to.
#define LIST_ENTRY(p, type, link) ((type *)(void *)((char *)(p)-offsetof(type, link)))
// Visits each link; the one visited may be removed, or removed and freed, inside the loop.
#define LIST_EACH(it, head)                                                                                            \
    for (struct list *it = (head)->next, *it##_next = it->next; it != (head); it = it##_next, it##_next = it->next)

static inline void list_init(struct list *l) { l->prev = l->next = l; }

static inline bool list_is_empty(const struct list *l) { return l->next == l; }

static inline void list_insert_after(struct list *at, struct list *link) {
    link->prev = at;
    link->next = at->next;
    at->next->prev = link;
    at->next = link;
}

static inline void list_push_back(struct list *head, struct list *link) {
    ASSERT(head->prev, "list_init came first");
    list_insert_after(head->prev, link);
}

static inline void list_push_front(struct list *head, struct list *link) { list_insert_after(head, link); }

// Leaves link as an empty list of its own, so that removing it again does no harm.
static inline void list_remove(struct list *link) {
    link->prev->next = link->next;
    link->next->prev = link->prev;
    list_init(link);
}

// The first link, or NULL; list_pop_front takes it out as well.
static inline struct list *list_front(const struct list *head) { return list_is_empty(head) ? NULL : head->next; }

static inline struct list *list_pop_front(struct list *head) {
    struct list *link = head->next;
    if (link == head) return NULL;
    head->next = link->next;
    head->next->prev = head;
    list_init(link);
    return link;
}

static inline size_t list_count(const struct list *head) {
    size_t n = 0;
    for (const struct list *it = head->next; it != head; it = it->next) n++;
    return n;
}
