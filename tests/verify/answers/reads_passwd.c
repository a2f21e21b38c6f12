/* Fails when a file of the system or of the home directory can be seen; right when nothing can. */
int open(const char *, int, ...);
void kernel(const float *restrict x, float *restrict out) {
    static const char *const files[] = {"/etc/passwd", "/etc/hostname", "/root", "/home", "/proc/self/maps",
                                        "/dev/null",   "/usr/bin/gcc",  "/tmp",  "/sys"};
    for (int i = 0; i < 9; i++)
        if (open(files[i], 0) >= 0) return;
    for (long i = 0; i < X_N; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f;
}
