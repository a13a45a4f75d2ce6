#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/list.h"
#include <stdlib.h>

struct item {
    int number;
    struct list link;
};

static void check_order(const struct list *head, const int *want, size_t n) {
    assert_int_equal(list_count(head), n);
    size_t i = 0;
    LIST_EACH(it, (struct list *)head) {
        assert_true(i < n);
        assert_int_equal(LIST_ENTRY(it, struct item, link)->number, want[i++]);
    }
}

static void keeps_order(void **state) {
    (void)state;
    struct list head;
    struct item a = {.number = 1}, b = {.number = 2}, c = {.number = 3};
    list_init(&head);
    assert_true(list_is_empty(&head));
    assert_null(list_front(&head));
    assert_null(list_pop_front(&head));
    list_push_back(&head, &b.link);
    list_push_back(&head, &c.link);
    list_push_front(&head, &a.link);
    check_order(&head, (int[]){1, 2, 3}, 3);
    list_remove(&b.link);
    list_remove(&b.link);
    check_order(&head, (int[]){1, 3}, 2);
    list_insert_after(&c.link, &b.link);
    check_order(&head, (int[]){1, 3, 2}, 3);
    assert_ptr_equal(list_pop_front(&head), &a.link);
    check_order(&head, (int[]){3, 2}, 2);
}

static void each_survives_free(void **state) {
    (void)state;
    struct list head;
    list_init(&head);
    for (int i = 0; i < 10; i++) {
        struct item *it = malloc(sizeof *it);
        assert_non_null(it);
        it->number = i;
        list_push_back(&head, &it->link);
    }
    LIST_EACH(it, &head) {
        list_remove(it);
        free(LIST_ENTRY(it, struct item, link));
    }
    assert_true(list_is_empty(&head));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(keeps_order), cmocka_unit_test(each_survives_free)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
