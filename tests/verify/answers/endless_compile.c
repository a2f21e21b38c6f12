/* A megabyte of work for the preprocessor from a few lines. */
#define A x[i] + x[i] * x[i] -
#define B A A A A A A A A A A
#define C B B B B B B B B B B
#define D C C C C C C C C C C
#define E D D D D D D D D D D
void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) out[i] = E E E E E E E E E E 0;
}
