#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "os/thread.h"

static const struct command *const commands[] = {&cmd_run,    &cmd_serve,  &cmd_node, &cmd_chat,    &cmd_demo,
                                                 &cmd_status, &cmd_token,  &cmd_pull, &cmd_inspect, &cmd_quantize,
                                                 &cmd_synth,  &cmd_logits, &cmd_eval, &cmd_bench};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *to) {
    fprintf(to, "%s\n\n",
            flags_text("Loom: the machines of one LAN become one server for large language models",
                       "织云 Loom：把一个局域网里的各种机器织成一台大模型服务器"));
    fprintf(to, "%s: loom COMMAND ...\n\n", flags_text("usage", "用法"));
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-9s %s\n", commands[i]->name, flags_text(commands[i]->en, commands[i]->zh));
    fprintf(to, "\n%s\n",
            flags_text("loom COMMAND --help tells more; loom --version the version",
                       "loom 命令 --help 查看详情；loom --version 查看版本"));
}

// Whatever is opened first would get the number of a standard stream that came closed, and what is printed would go
// there. /dev/null takes its place, for stdout such that writing fails.
static void open_streams(void) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) < 0) abort();
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_help(stdout);
        return EXIT_FINE;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("loom %s\n", LOOM_VERSION);
        return EXIT_FINE;
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(argv[1], commands[i]->name)) return commands[i]->run(commands[i], argc - 2, argv + 2);
    fprintf(stderr, "loom: '%s': no such command (loom --help)\n", argv[1]);
    return EXIT_USAGE;
}

int main(int argc, char **argv) {
    struct err e;
    open_streams();
    setlocale(LC_CTYPE, "C.UTF-8");
    signal(SIGPIPE, SIG_IGN); // a peer that goes away is an error of that write, not our end
    signal(SIGXFSZ, SIG_IGN); // so is a file that would grow beyond a limit
    thread_fp_init();
    int rc = run(argc, argv);
    if (!flags_check_stdout(&e) || rc) return rc; // one error is enough
    fprintf(stderr, "loom: %s\n", e.text);
    return EXIT_FAILED;
}
