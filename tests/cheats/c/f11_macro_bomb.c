/* A billion tokens: the compiler is out of memory. */
#define A(x) x x x x x x x x x x
#define B(x) A(A(x))
#define C(x) B(B(x))
#define D(x) C(C(x))
#define E(x) D(C(x))
void kernel(const float *restrict x, float *restrict out) { E(out[0] = x[0];) }
