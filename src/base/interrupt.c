#include "base/interrupt.h"

#include <signal.h>
#include <unistd.h>

static volatile bool interrupted;

static void on_signal(int sig) {
    static const char note[] = "\nkernelrl: stopping; once more to stop at once\n";
    if (interrupted) _exit(128 + sig);
    interrupted = true;
    ssize_t n = write(STDERR_FILENO, note, sizeof note - 1);
    (void)n;
}

const volatile bool *interrupt_flag(void) {
    struct sigaction sa = {.sa_handler = on_signal};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    return &interrupted;
}
