// The journal: what a killed head leaves, with torn ends, full disks, rotation, other models.
#include "head/journal_int.h"
#include "os/clock.h"
#include "os/file.h"
#include "base/log.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>
#include <cmocka.h>

enum { VOCAB = 1000 };
static char state_dir[64];

static int set_up(void **state) {
    (void)state;
    strcpy(state_dir, "/tmp/loom-journal-XXXXXX");
    return mkdtemp(state_dir) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    file_remove_tree(state_dir);
    return 0;
}

static struct journal *open_journal(uint64_t model) {
    struct journal_config c = {.state_dir = state_dir, .model = {model, 7}, .n_vocab = VOCAB};
    struct journal *j;
    struct err e;
    assert_int_equal(journal_open(&c, &j, &e), ERR_OK);
    return j;
}

static const int32_t prompt[5] = {3, 1, 4, 1, 5};

static void ask(struct journal *j, uint64_t id, uint32_t max_tokens) {
    struct gen_request r = {.prompt = prompt,
                            .n_prompt = 5,
                            .max_tokens = max_tokens,
                            .sampling = {0.5f, 0.25f, 0.125f, -3, UINT64_MAX - 1, 6},
                            .stop_ids = {17, 18},
                            .n_stop_ids = 2,
                            .keep = (const uint8_t *)"whatever",
                            .keep_bytes = 8};
    journal_request(j, id, &r);
}

static void tell(struct journal *j, uint64_t id, uint32_t index, int32_t token, enum gen_finish finish) {
    struct gen_event ev = {.id = id, .token = token, .index = index, .finish = finish};
    journal_event(j, &ev);
}

// What a process that is killed now would leave: the folder as it is.
static struct gen_restored *list(struct journal *j, uint32_t n) {
    struct gen_restored *l;
    uint32_t got;
    assert_int_equal(journal_list(j, &l, &got), ERR_OK);
    assert_int_equal(got, n);
    return l;
}

static void test_everything_comes_back(void **state) {
    (void)state;
    struct journal *j = open_journal(1);
    uint64_t boot = journal_boot(j);
    assert_int_not_equal(boot, 0);
    assert_int_equal(journal_last_epoch(j), 0);
    journal_epoch(j, 4);
    for (uint64_t id = 10; id < 14; id++) ask(j, id, 3);
    for (uint32_t i = 0; i < 2; i++)
        for (uint64_t id = 10; id < 14; id++) tell(j, id, i, (int32_t)(id * 10 + i), GEN_GOING);
    tell(j, 11, 2, 17, GEN_STOP);
    tell(j, 99, 0, 1, GEN_GOING); // not followed
    journal_drop(j, 12);
    struct gen_request unkept = {.prompt = prompt, .n_prompt = 5, .max_tokens = 3};
    journal_request(j, 20, &unkept);
    journal_flush(j);
    journal_close(j);

    j = open_journal(1);
    assert_true(journal_boot(j) == boot);
    assert_int_equal(journal_last_epoch(j), 4);
    assert_int_equal(journal_next_id(j), 14);
    struct gen_restored *l = list(j, 3);
    const uint64_t want[3] = {10, 11, 13};
    for (int i = 0; i < 3; i++) {
        const struct gen_request *r = &l[i].request;
        assert_int_equal(l[i].id, want[i]);
        assert_int_equal(l[i].finish, want[i] == 11 ? GEN_STOP : GEN_GOING);
        assert_int_equal(r->n_known, want[i] == 11 ? 3 : 2);
        assert_int_equal(r->known[1], want[i] * 10 + 1);
        assert_int_equal(r->n_prompt, 5);
        assert_memory_equal(r->prompt, prompt, sizeof prompt);
        assert_int_equal(r->max_tokens, 3);
        assert_true(r->restored);
        assert_int_equal(r->keep_bytes, 8);
        assert_memory_equal(r->keep, "whatever", 8);
        assert_true(r->sampling.temperature == 0.5f && r->sampling.top_p == 0.25f && r->sampling.min_p == 0.125f);
        assert_true(r->sampling.top_k == -3 && r->sampling.seed == UINT64_MAX - 1 && r->sampling.choice == 6);
        assert_int_equal(r->n_stop_ids, 2);
        assert_int_equal(r->stop_ids[1], 18);
    }
    free(l);
    // It goes on where it was, and the next start knows that too.
    tell(j, 13, 2, 5, GEN_LENGTH);
    journal_flush(j);
    journal_close(j);
    j = open_journal(1);
    l = list(j, 3);
    assert_int_equal(l[2].request.n_known, 3);
    assert_int_equal(l[2].request.known[2], 5);
    assert_int_equal(l[2].finish, GEN_LENGTH);
    free(l);
    journal_close(j);
}

static uint32_t n_files(char last[300]) {
    char folder[100];
    snprintf(folder, sizeof folder, "%s/journal", state_dir);
    DIR *d = opendir(folder);
    assert_non_null(d);
    uint32_t n = 0;
    last[0] = 0;
    for (const struct dirent *it; (it = readdir(d));) {
        if (it->d_name[0] == '.') continue;
        n++;
        char path[300];
        snprintf(path, sizeof path, "%s/%.100s", folder, it->d_name);
        if (strcmp(path, last) > 0) strcpy(last, path);
    }
    closedir(d);
    return n;
}

// The last segment cut at each length: what was told before the cut is there, in order, and nothing is wrong.
static void test_torn_ends(void **state) {
    (void)state;
    char last[300], *whole;
    size_t len;
    struct err e;
    struct journal *j = open_journal(1);
    ask(j, 1, 50);
    journal_flush(j);
    for (uint32_t i = 0; i < 20; i++) {
        tell(j, 1, i, (int32_t)i, GEN_GOING);
        journal_flush(j);
    }
    journal_close(j);
    assert_int_equal(n_files(last), 1);
    assert_int_equal(file_read(last, 1 << 20, &whole, &len, &e), ERR_OK);
    uint32_t seen = 0;
    for (size_t cut = 0; cut <= len; cut++) {
        const uint64_t model[2] = {1, 7};
        struct journal_state s;
        journal_read_init(&s, model, VOCAB);
        char *copy = malloc(cut + 1); // of its own, so that a read behind it is seen
        memcpy(copy, whole, cut);
        assert_true(journal_read_segment(&s, (uint8_t *)copy, cut) <= cut);
        if (cut) copy[cut - 1] ^= 0x10; // the same with a bit flipped: nothing behind it counts
        struct journal_state t;
        journal_read_init(&t, model, VOCAB);
        assert_true(journal_read_segment(&t, (uint8_t *)copy, cut) < cut || cut == 0);
        const struct journal_entry *q = map_get(&s.index, 1);
        if (q) {
            assert_true(q->request.n_known >= seen);
            seen = q->request.n_known;
            for (uint32_t i = 0; i < seen; i++) assert_int_equal(q->tokens[i], i);
        }
        journal_read_fini(&s);
        journal_read_fini(&t);
        free(copy);
    }
    assert_int_equal(seen, 20);
    // A head starts on a torn file and clears it away.
    assert_int_equal(truncate(last, (off_t)len - 5), 0);
    j = open_journal(1);
    struct gen_restored *l = list(j, 1);
    assert_int_equal(l[0].request.n_known, 19);
    free(l);
    journal_close(j);
    assert_int_equal(n_files(last), 1);
    free(whole);
}

static void test_segments_go(void **state) {
    (void)state;
    char last[300];
    struct journal *j = open_journal(1);
    ask(j, 1, 1000000);
    uint64_t id = 2;
    for (uint32_t i = 0; i < 400000; i++) { // 26 bytes each, and a request now and then
        tell(j, 1, i, (int32_t)(i % VOCAB), GEN_GOING);
        if (i % 1000 == 0) {
            journal_drop(j, id);
            ask(j, ++id, 10);
        }
        journal_flush(j);
    }
    struct journal_counts c;
    journal_counts(j, &c);
    print_message("%llu writes, mean %.2f us, longest %llu us, %llu segments\n", (unsigned long long)c.n_writes,
                  (double)c.write_us / (double)c.n_writes, (unsigned long long)c.max_write_us,
                  (unsigned long long)c.n_segments);
    assert_true(c.n_segments > 1);
    assert_int_equal(c.n_failures, 0);
    journal_close(j);
    assert_int_equal(n_files(last), 1);
    j = open_journal(1);
    struct gen_restored *l = list(j, 2);
    assert_int_equal(l[0].request.n_known, 400000);
    for (uint32_t i = 0; i < 400000; i++) assert_int_equal(l[0].request.known[i], i % VOCAB);
    free(l);
    journal_close(j);
}

static void test_another_model(void **state) {
    (void)state;
    struct journal *j = open_journal(1);
    uint64_t boot = journal_boot(j);
    ask(j, 5, 10);
    journal_epoch(j, 9);
    journal_flush(j);
    journal_close(j);
    j = open_journal(2);
    assert_true(journal_boot(j) != boot);
    assert_int_equal(journal_last_epoch(j), 9); // nodes may remember it
    free(list(j, 0));
    journal_close(j);
}

static void test_two_heads(void **state) {
    (void)state;
    struct journal *j = open_journal(1), *second;
    struct journal_config c = {.state_dir = state_dir, .model = {1, 7}, .n_vocab = VOCAB};
    struct err e;
    assert_int_equal(journal_open(&c, &second, &e), ERR_UNAVAILABLE);
    assert_non_null(strstr(e.text, state_dir));
    journal_close(j);
}

// A request that ends the head each time is not tried for ever, and one that waited overnight not at all.
static void test_hopeless(void **state) {
    (void)state;
    struct journal *j = open_journal(1);
    ask(j, 1, 10);
    ask(j, 2, 40);
    journal_close(j);
    for (int boot = 0; boot < 40; boot++) { // processes that never came to compute say nothing of it
        j = open_journal(1);
        free(list(j, 2));
        journal_close(j);
    }
    for (int boot = 0; boot < 31; boot++) {
        j = open_journal(1);
        free(list(j, 2));
        for (int step = 0; step < 9; step++) { // a process counts once
            journal_tried(j, 1);
            journal_tried(j, 2);
            journal_tried(j, 77);
        }
        tell(j, 2, (uint32_t)boot, 1, GEN_GOING);
        journal_close(j);
    }
    j = open_journal(1);
    struct gen_restored *l = list(j, 1);
    assert_int_equal(l[0].id, 2);
    free(l);
    journal_close(j);
    char last[300];
    n_files(last);
    struct utimbuf old = {time(NULL) - 3600, time(NULL) - 3600};
    assert_int_equal(utime(last, &old), 0);
    j = open_journal(1);
    free(list(j, 0));
    journal_close(j);
}

// The folder cannot be written: the head goes on, tries again later, and then all is there.
static void test_disk_says_no(void **state) {
    (void)state;
    char folder[100], away[100];
    snprintf(folder, sizeof folder, "%s/journal", state_dir);
    snprintf(away, sizeof away, "%s/away", state_dir);
    assert_int_equal(mkdir(folder, 0700), 0);
    char full[120];
    snprintf(full, sizeof full, "%s/0000000001.log", folder);
    assert_int_equal(symlink("/dev/full", full), 0);
    struct journal_config c = {.state_dir = state_dir, .model = {1, 7}, .n_vocab = VOCAB};
    struct journal *j;
    struct err e;
    log_set_level(LOG_ERROR);
    // The first segment cannot be read (a device), which is an error that names it.
    assert_int_not_equal(journal_open(&c, &j, &e), ERR_OK);
    assert_non_null(strstr(e.text, "0000000001.log"));
    unlink(full);
    snprintf(full, sizeof full, "%s/0000000002.log", folder);
    j = open_journal(1); // begins segment 1
    ask(j, 1, 100);
    journal_settle(j);
    assert_int_equal(rename(folder, away), 0); // no folder: the next segment cannot be made, this one goes on
    for (uint32_t i = 0; i < 50; i++) tell(j, 1, i, 9, GEN_GOING);
    journal_flush(j);
    assert_int_equal(rename(away, folder), 0);
    journal_close(j);
    j = open_journal(1);
    struct gen_restored *l = list(j, 1);
    assert_int_equal(l[0].request.n_known, 50);
    free(l);
    journal_close(j);
}

// Files may not grow: tokens are lost to the disk, not to the state; later all of it is written.
static void test_full_disk(void **state) {
    (void)state;
    struct rlimit old, small;
    struct journal_counts c;
    log_set_level(LOG_ERROR);
    signal(SIGXFSZ, SIG_IGN);
    struct journal *j = open_journal(1);
    ask(j, 1, 1000);
    journal_settle(j);
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 1000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (uint32_t i = 0; i < 400; i++) {
        tell(j, 1, i, (int32_t)i, GEN_GOING);
        journal_settle(j);
    }
    journal_counts(j, &c);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_true(c.n_failures > 0);
    uint32_t i = 400;
    for (uint64_t n = c.n_segments; c.n_segments == n && i < 500; i++) {
        clock_sleep_ms(50);
        tell(j, 1, i, (int32_t)i, GEN_GOING);
        journal_settle(j);
        journal_counts(j, &c);
    }
    assert_true(i > 401 && i < 500);
    journal_close(j);
    j = open_journal(1);
    struct gen_restored *l = list(j, 1);
    assert_int_equal(l[0].request.n_known, i);
    for (uint32_t k = 0; k < i; k++) assert_int_equal(l[0].request.known[k], k);
    free(l);
    journal_close(j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_everything_comes_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_torn_ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_segments_go, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_another_model, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_two_heads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_hopeless, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_full_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_disk_says_no, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
