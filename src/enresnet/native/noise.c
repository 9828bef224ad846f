/* Gaussian noise of scale noise * std, added to every example, and its gradient (Sec. 3.1).
 *
 *   forward   y = x + s n,  s = noise * std(x),  n ~ N(0, I)
 *   backward  dx = g + c (x - mean(x)),  c = noise * <g, n> / (count * std(x)),  n = (y - x) / s
 *
 * The draws are not stored: y - x has them, as they were added.
 *
 * Random bits: xoshiro128++ (Blackman and Vigna, 2021), sixteen of them side by side, started anew
 * for every chunk of elements by SplitMix64 from the key and the number of the chunk. So a draw
 * depends on the key and its place alone, not on the number of threads. Normal deviates: Box and
 * Muller (1958), with polynomials for the logarithm and the sine.
 *
 * Written with the vector extensions of GCC and Clang, which fit whatever the machine has.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define LANES 16
#define DRAWS (2 * LANES) /* made at a time */
#define CHUNK 4096        /* elements that one start serves */

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh32 __attribute__((vector_size(4 * LANES)));

/* ---- random bits ---- */

typedef struct { vu a, b, c, d; } bits;

static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static bits start(uint64_t key, uint64_t chunk)
{
    /* The chunk goes through the mixer too: neighbouring chunks must not overlap. */
    uint64_t salt = chunk, state = key ^ splitmix(&salt);
    uint32_t words[4][LANES];
    for (int lane = 0; lane < LANES; lane++)
        for (int half = 0; half < 2; half++) {
            uint64_t z = splitmix(&state);
            words[2 * half][lane] = (uint32_t)z;
            words[2 * half + 1][lane] = (uint32_t)(z >> 32);
        }
    bits s;
    memcpy(&s, words, sizeof s);
    return s;
}

static inline vu rotated(vu x, int by) { return (x << by) | (x >> (32 - by)); }

static inline vu next(bits *s)
{
    vu result = rotated(s->a + s->d, 7) + s->a, t = s->b << 9;
    s->c ^= s->a;
    s->d ^= s->b;
    s->b ^= s->c;
    s->a ^= s->d;
    s->c ^= t;
    s->d = rotated(s->d, 11);
    return result;
}

/* ---- normal deviates ---- */

static inline vf pick(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }

static inline vf logarithm(vf x)
{
    /* x = 2^e m with m between sqrt(1/2) and sqrt(2); a series in m - 1, to 1e-6 */
    vi shifted = (vi)x - 0x3f3504f3;
    vi e = shifted >> 23;
    vf f = (vf)((shifted & 0x007fffff) + 0x3f3504f3) - 1.0f;
    vf p = f * -0.108964234f + 0.157915597f;
    p = p * f - 0.169181526f;
    p = p * f + 0.199485036f;
    p = p * f - 0.249947008f;
    p = p * f + 0.333336171f;
    return f - 0.5f * f * f + f * f * f * p + __builtin_convertvector(e, vf) * 0.69314718f;
}

static inline vf sine_of_turns(vf x) /* sin(2 pi x) for |x| <= 1/4, to 6e-7 */
{
    vf q = x * x, p = q * -70.9934274f + 81.3407683f;
    p = p * q - 41.3371424f;
    p = p * q + 6.28316404f;
    return p * x;
}

static inline vf root(vf x)
{
#ifdef __AVX512F__
    return (vf)_mm512_sqrt_ps((__m512)x);
#else
    vf y;
    for (int lane = 0; lane < LANES; lane++) y[lane] = sqrtf(x[lane]);
    return y;
#endif
}

static inline void normals(bits *s, vf *first, vf *second)
{
    vu u = next(s), v = next(s);
    /* (0, 1], with all 32 bits: the smallest, 2^-33, is a deviate of 6.8 */
    vf x = __builtin_convertvector(u, vf) * 0x1p-32f + 0x1p-33f;
    vf radius = root(-2.0f * logarithm(x)); /* the series has the sign it should near 1 */
    vf turn = __builtin_convertvector((vi)v, vf) * 0x1p-32f; /* [-1/2, 1/2] */
    vf size = (vf)((vi)turn & 0x7fffffff);
    vf half = (vf)(((vi)turn & (int32_t)0x80000000) | 0x3f000000); /* 1/2 with the turn's sign */
    *first = radius * sine_of_turns(0.25f - size);                  /* cosine */
    *second = radius * sine_of_turns(pick(size > 0.25f, half - turn, turn));
}

/* ---- float32 and bfloat16, 32 elements at a time ---- */

typedef struct { vf a, b; } pair; /* float: the first and the last 16; bfloat16: even and odd */

static inline pair load_float(const float *p) { pair x; memcpy(&x, p, sizeof x); return x; }
static inline void store_float(float *p, pair x) { memcpy(p, &x, sizeof x); }

static inline pair load_bfloat(const uint16_t *p)
{
    vu u;
    memcpy(&u, p, sizeof u);
    return (pair){(vf)(u << 16), (vf)(u & 0xffff0000u)};
}

#ifdef __AVX512BF16__
static inline void store_bfloat(uint16_t *p, pair x)
{
    static const vh32 order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                               8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i h = (__m512i)_mm512_cvtne2ps_pbh((__m512)x.b, (__m512)x.a);
    h = _mm512_permutexvar_epi16((__m512i)order, h);
    memcpy(p, &h, sizeof h);
}
#else
static inline vu nearest(vf x) /* the upper half, to nearest, ties to even */
{
    vu u = (vu)x, even = u + 0x7fffu + ((u >> 16) & 1u);
    vi nan = (u & 0x7fffffffu) > 0x7f800000u;
    return (((vu)nan & 0x7fc00000u) | (~(vu)nan & even)) & 0xffff0000u;
}

static inline void store_bfloat(uint16_t *p, pair x)
{
    vu u = (nearest(x.a) >> 16) | nearest(x.b);
    memcpy(p, &u, sizeof u);
}
#endif

/* one element at a time, for the compiler to put side by side */
static inline int on_float(float x) { return x != 0.0f; }
static inline int on_bfloat(uint16_t x) { return (x & 0x7fffu) != 0; }
static inline float plus_float(float a, float b) { return a + b; }

static inline uint16_t plus_bfloat(uint16_t a, uint16_t b)
{
    uint32_t wide[2] = {(uint32_t)a << 16, (uint32_t)b << 16}, u;
    float x, y;
    memcpy(&x, wide, sizeof x);
    memcpy(&y, wide + 1, sizeof y);
    x += y;
    memcpy(&u, &x, sizeof u);
    uint32_t even = u + 0x7fffu + ((u >> 16) & 1u);
    return (uint16_t)(((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : even) >> 16);
}

static inline vf zeroed(vf x, vi off) { return (vf)((vi)x & ~off); }

static inline float total(vf x)
{
    float sum = 0.0f;
    for (int lane = 0; lane < LANES; lane++) sum += x[lane];
    return sum;
}

/* Sums of deviations from a first guess, the row's first element: near enough to lose nothing in
 * float, unless that one is thousands of deviations from the rest (0.4 % for 3e4 before ones). */
typedef struct { vf sum, squares; double total, total_squares; float guess; } gathered;

static inline void gather(gathered *all, pair x, int64_t at)
{
    vf a = x.a - all->guess, b = x.b - all->guess;
    all->sum += a + b;
    all->squares += a * a;
    all->squares += b * b;
    if (at % CHUNK == CHUNK - DRAWS) {
        all->total += total(all->sum);
        all->total_squares += total(all->squares);
        all->sum = all->squares = (vf){0};
    }
}

static void conclude(const gathered *all, int64_t count, float *mean, float *deviation)
{
    double sum = all->total + total(all->sum), squares = all->total_squares + total(all->squares);
    double middle = sum / (double)count, square = squares / (double)count - middle * middle;
    *mean = (float)(all->guess + middle);
    *deviation = (float)sqrt(square > 0 ? square : square * 0); /* NaN stays */
}

/* What BatchNorm amounts to in evaluation, a number a channel: channels is a multiple of LANES, at
 * most WIDEST, so that places repeat after one pixel or two. */
#define WIDEST 4096
typedef struct { pair all[WIDEST / LANES]; int64_t period; } table;

#define TYPE float
#define NAME(x) x##_float
#define LOAD load_float
#define STORE store_float
#include "noise_loops.h"
#undef TYPE
#undef NAME
#undef LOAD
#undef STORE

#define TYPE uint16_t
#define NAME(x) x##_bfloat
#define LOAD load_bfloat
#define STORE store_bfloat
#include "noise_loops.h"
