/* The CPU's fused steps of a transformer layer; native.py has their contracts, and torch twins define them.
 *
 * No Python and no torch headers: plain pointers come in. Inner functions are compiled for several instruction sets, of
 * which the loader picks one. OpenMP's run-time library is the one that torch has loaded (it is not linked here), so
 * that both share one pool of threads instead of fighting over the cores.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MULTIVERSION __attribute__((noinline, target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define MULTIVERSION __attribute__((noinline))
#endif

typedef uint16_t bfloat16;

static inline float load_bf16(bfloat16 value) {
    union { uint32_t bits; float number; } u = {(uint32_t)value << 16};
    return u.number;
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
static inline bfloat16 store_bf16(float value) {
    union { float number; uint32_t bits; } u = {value};
    uint32_t rounded = (u.bits + 0x7FFF + ((u.bits >> 16) & 1)) >> 16;
    return (u.bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : (bfloat16)rounded;
}

static inline float load_f32(float value) { return value; }
static inline float store_f32(float value) { return value; }

/* e^x for x <= 0 within 2 units in the last place (Cody and Waite's reduction, polynomial of degree 5), without a
 * branch or a call, so that a loop of it is vectorised. Once a target: a function is inlined only where targets agree. */
#define DEFINE_EXP(NAME, TARGET)                                                                                       \
    static inline __attribute__((always_inline)) TARGET float NAME(float x) {                                          \
        x = x < -87.0f ? -87.0f : x;                                                                                   \
        int32_t n = (int32_t)(x * 1.44269504f - 0.5f);                                                                 \
        float whole = (float)n, scale;                                                                                 \
        float r = (x - whole * 0.693145752f) - whole * 1.42860677e-6f;                                                 \
        float p = 1.9875691e-4f;                                                                                       \
        p = p * r + 1.3981999e-3f;                                                                                     \
        p = p * r + 8.3334519e-3f;                                                                                     \
        p = p * r + 4.1665796e-2f;                                                                                     \
        p = p * r + 1.6666665e-1f;                                                                                     \
        p = p * r + 5.0000001e-1f;                                                                                     \
        p = p * r * r + r + 1.0f;                                                                                      \
        int32_t bits = (n + 127) << 23;                                                                                \
        __builtin_memcpy(&scale, &bits, sizeof scale);                                                                 \
        return p * scale;                                                                                              \
    }

#define ANY_TARGET
DEFINE_EXP(exp_nonpositive, ANY_TARGET)

/* A block is on pages of its own, where the hardware does not look ahead. */
static inline __attribute__((always_inline)) void fetch_ahead(const void *address, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)address + at);
}

#define DEFINE_KERNELS(NAME, TYPE)                                                                                     \
    MULTIVERSION static void rms_norm_row_##NAME(const TYPE *x, const TYPE *weight, TYPE *out, int hidden, float eps) { \
        float sum = 0.0f;                                                                                              \
        _Pragma("omp simd reduction(+ : sum)")                                                                         \
        for (int i = 0; i < hidden; i++) sum += load_##NAME(x[i]) * load_##NAME(x[i]);                                 \
        float scale = 1.0f / sqrtf(sum / (float)hidden + eps);                                                         \
        for (int i = 0; i < hidden; i++) {                                                                             \
            TYPE normed = store_##NAME(load_##NAME(x[i]) * scale);                                                     \
            out[i] = store_##NAME(load_##NAME(normed) * load_##NAME(weight[i]));                                       \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    void baton_rms_norm_##NAME(const TYPE *x, const TYPE *weight, TYPE *out, int64_t rows, int hidden, float eps) {    \
        _Pragma("omp parallel for if (rows >= 32)")                                                                    \
        for (int64_t row = 0; row < rows; row++)                                                                       \
            rms_norm_row_##NAME(x + row * hidden, weight, out + row * hidden, hidden, eps);                            \
    }                                                                                                                  \
                                                                                                                       \
    MULTIVERSION static void rotate_##NAME(const TYPE *x, const TYPE *cosine, const TYPE *sine, TYPE *out, int dim) {  \
        int half = dim / 2;                                                                                            \
        float rotated[512];                                                                                            \
        for (int i = 0; i < half; i++) {                                                                               \
            rotated[i] = load_##NAME(x[i]) * load_##NAME(cosine[i]) + load_##NAME(x[i + half]) * load_##NAME(sine[i]); \
            rotated[i + half] =                                                                                        \
                load_##NAME(x[i + half]) * load_##NAME(cosine[i + half]) + load_##NAME(x[i]) * load_##NAME(sine[i + half]); \
        }                                                                                                              \
        for (int i = 0; i < dim; i++) out[i] = store_##NAME(rotated[i]);                                               \
    }                                                                                                                  \
                                                                                                                       \
    void baton_rotate_and_write_##NAME(TYPE *qkv, const TYPE *cosine, const TYPE *sine, TYPE *pool, const int64_t *rows, \
                                     int64_t tokens, int heads, int kv_heads, int dim, int block_size, int layer) {    \
        _Pragma("omp parallel for if (tokens >= 32)")                                                                  \
        for (int64_t token = 0; token < tokens; token++) {                                                             \
            TYPE *own = qkv + token * (heads + 2 * kv_heads) * dim;                                                    \
            const TYPE *c = cosine + token * dim, *s = sine + token * dim;                                             \
            for (int h = 0; h < heads; h++) rotate_##NAME(own + h * dim, c, s, own + h * dim, dim);                    \
            for (int h = 0; h < kv_heads; h++) {                                                                       \
                TYPE *key = pool + (rows[token * kv_heads + h] + (int64_t)layer * 2 * block_size) * dim;               \
                rotate_##NAME(own + (heads + h) * dim, c, s, key, dim);                                                \
                memcpy(key + (int64_t)block_size * dim, own + (heads + kv_heads + h) * dim, sizeof(TYPE) * dim);       \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    static inline __attribute__((always_inline)) void attend_any_##NAME(                                               \
        const TYPE *query, const TYPE *pool, const int32_t *table, int64_t stride, int context, int group,             \
        const int dim, int block_size, float scale, float *restrict scratch, TYPE *restrict out) {                     \
        float *restrict scores = scratch, *restrict q = scratch + (int64_t)group * context, *restrict sum = q + group * dim; \
        for (int i = 0; i < group * dim; i++) q[i] = load_##NAME(query[i]) * scale, sum[i] = 0.0f;                     \
        for (int first = 0; first < context; first += block_size) {                                                    \
            const TYPE *keys = pool + table[first / block_size] * stride;                                              \
            int count = context - first < block_size ? context - first : block_size;                                   \
            if (first + block_size < context)                                                                          \
                fetch_ahead(pool + table[first / block_size + 1] * stride, sizeof(TYPE) * block_size * dim);           \
            for (int t = 0; t < count; t++)                                                                            \
                for (int g = 0; g < group; g++) {                                                                      \
                    float dot = 0.0f;                                                                                  \
                    _Pragma("omp simd reduction(+ : dot)")                                                             \
                    for (int d = 0; d < dim; d++) dot += q[g * dim + d] * load_##NAME(keys[t * dim + d]);              \
                    scores[g * context + first + t] = dot;                                                             \
                }                                                                                                      \
        }                                                                                                              \
        float total[64];                                                                                               \
        for (int g = 0; g < group; g++) {                                                                              \
            float *row = scores + (int64_t)g * context, best = row[0];                                                 \
            _Pragma("omp simd reduction(max : best)")                                                                  \
            for (int t = 1; t < context; t++) best = row[t] > best ? row[t] : best;                                    \
            float weight = 0.0f;                                                                                       \
            _Pragma("omp simd reduction(+ : weight)")                                                                  \
            for (int t = 0; t < context; t++) weight += row[t] = exp_nonpositive(row[t] - best);                       \
            total[g] = weight;                                                                                         \
        }                                                                                                              \
        for (int first = 0; first < context; first += block_size) {                                                    \
            const TYPE *values = pool + table[first / block_size] * stride + block_size * dim;                         \
            int count = context - first < block_size ? context - first : block_size;                                   \
            if (first + block_size < context)                                                                          \
                fetch_ahead(pool + table[first / block_size + 1] * stride + block_size * dim,                          \
                            sizeof(TYPE) * block_size * dim);                                                          \
            for (int g = 0; g < group; g++) {                                                                          \
                float own[512];                                                                                        \
                for (int d = 0; d < dim; d++) own[d] = sum[g * dim + d];                                               \
                for (int t = 0; t < count; t++) {                                                                      \
                    float weight = scores[g * context + first + t];                                                    \
                    for (int d = 0; d < dim; d++) own[d] += weight * load_##NAME(values[t * dim + d]);                 \
                }                                                                                                      \
                for (int d = 0; d < dim; d++) sum[g * dim + d] = own[d];                                               \
            }                                                                                                          \
        }                                                                                                              \
        for (int i = 0; i < group * dim; i++) out[i] = store_##NAME(sum[i] / total[i / dim]);                          \
    }                                                                                                                  \
                                                                                                                       \
    MULTIVERSION static void attend_##NAME(const TYPE *query, const TYPE *pool, const int32_t *table, int64_t stride,  \
                                           int context, int group, int dim, int block_size, float scale,               \
                                           float *scratch, TYPE *out) {                                                \
        if (dim == 64) /* known lengths of the inner loops are worth a factor of two */                                \
            attend_any_##NAME(query, pool, table, stride, context, group, 64, block_size, scale, scratch, out);        \
        else if (dim == 128)                                                                                           \
            attend_any_##NAME(query, pool, table, stride, context, group, 128, block_size, scale, scratch, out);       \
        else                                                                                                           \
            attend_any_##NAME(query, pool, table, stride, context, group, dim, block_size, scale, scratch, out);       \
    }                                                                                                                  \
                                                                                                                       \
    int baton_paged_decode_##NAME(const TYPE *queries, int64_t query_stride, const TYPE *pool, const int64_t *tokens,  \
                                const int32_t *tables, const int32_t *contexts, int seqs, int table_width, int heads,  \
                                int kv_heads, int layers, int layer, int dim, int block_size, float scale, TYPE *out) { \
        int64_t block_stride = (int64_t)kv_heads * layers * 2 * block_size * dim;                                      \
        int group = heads / kv_heads, failed = 0;                                                                      \
        _Pragma("omp parallel for schedule(dynamic) reduction(| : failed)")                                            \
        for (int pair = 0; pair < seqs * kv_heads; pair++) {                                                           \
            int seq = pair / kv_heads, head = pair % kv_heads;                                                         \
            int context = contexts[seq];                                                                               \
            float *scratch = malloc(sizeof(float) * ((size_t)group * context + 2 * (size_t)group * dim));              \
            if (!scratch) { failed = 1; continue; }                                                                    \
            const TYPE *keys = pool + ((int64_t)head * layers + layer) * 2 * block_size * dim;                         \
            int64_t at = (int64_t)head * group * dim;                                                                  \
            attend_##NAME(queries + tokens[seq] * query_stride + at, keys, tables + (int64_t)seq * table_width,        \
                        block_stride, context, group, dim, block_size, scale, scratch,                                 \
                        out + tokens[seq] * heads * dim + at);                                                         \
            free(scratch);                                                                                             \
        }                                                                                                              \
        return failed;                                                                                                 \
    }

DEFINE_KERNELS(f32, float)
DEFINE_KERNELS(bf16, bfloat16)

/* Matrix product of few rows with weights packed as [out / 32][in][32], for processors with 32 vector registers of 16
 * floats: up to 12 rows by 32 columns are accumulated in registers while the weights stream by once. */
#if defined(__x86_64__)
#define AVX512 __attribute__((target("arch=skylake-avx512")))
#else
#define AVX512
#endif

DEFINE_EXP(exp_nonpositive_avx512, AVX512)

typedef float vec16 __attribute__((vector_size(64), aligned(4)));

#define PANEL 32
#define MAX_ROWS 12

static inline __attribute__((always_inline)) AVX512 void multiply_rows(const int rows, const float *x, int64_t inner,
                                                                const float *weights, float *out, int64_t out_stride) {
    vec16 sums[MAX_ROWS][2];
    _Pragma("GCC unroll 12") for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = (vec16){0};
    for (int64_t k = 0; k < inner; k++) {
        __builtin_prefetch(weights + (k + 24) * PANEL), __builtin_prefetch(weights + (k + 24) * PANEL + 16);
        vec16 low = *(const vec16 *)(weights + k * PANEL), high = *(const vec16 *)(weights + k * PANEL + 16);
        _Pragma("GCC unroll 12") for (int r = 0; r < rows; r++) {
            float factor = x[r * inner + k];
            sums[r][0] += low * factor;
            sums[r][1] += high * factor;
        }
    }
    _Pragma("GCC unroll 12") for (int r = 0; r < rows; r++) {
        *(vec16 *)(out + r * out_stride) = sums[r][0];
        *(vec16 *)(out + r * out_stride + 16) = sums[r][1];
    }
}

enum follow_up { NOTHING, SILU, TIMES, PLUS };

static inline __attribute__((always_inline)) AVX512 void finish(float *out, const float *other, int64_t count,
                                                                int follow_up) {
    if (follow_up == SILU)
        _Pragma("omp simd")
        for (int64_t i = 0; i < count; i++) {
            /* Of e^-|y|, which cannot overflow: y / (1 + e) where y is positive, y e / (1 + e) where not; no branch. */
            float y = out[i], e = exp_nonpositive_avx512(-__builtin_fabsf(y)), negative = (float)(y < 0.0f);
            out[i] = y * (negative * e + (1.0f - negative)) / (1.0f + e);
        }
    else if (follow_up == TIMES)
        for (int64_t i = 0; i < count; i++) out[i] *= other[i];
    else if (follow_up == PLUS)
        for (int64_t i = 0; i < count; i++) out[i] += other[i];
}

#define CASE(R) case R: multiply_rows(R, x + row * inner, inner, weights, out + row * outer, outer); break;

__attribute__((noinline)) AVX512 static void linear_panel(const float *x, const float *weights, const float *other,
                                                          float *out, int64_t rows, int64_t outer, int64_t inner,
                                                          int follow_up) {
    int64_t groups = (rows + MAX_ROWS - 1) / MAX_ROWS;
    for (int64_t g = 0, row = 0; g < groups; g++) {
        int64_t count = (rows - row + groups - g - 1) / (groups - g);
        switch (count) {
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
        }
        row += count;
    }
    for (int64_t row = 0; row < rows; row++) finish(out + row * outer, other + row * outer, PANEL, follow_up);
}

void baton_linear_f32(const float *x, const float *weights, const float *other, float *out, int64_t rows, int64_t outer,
                      int64_t inner, int follow_up) {
    _Pragma("omp parallel for")
    for (int64_t column = 0; column < outer; column += PANEL)
        linear_panel(x, weights + column * inner, other ? other + column : out + column, out + column, rows, outer,
                     inner, follow_up);
}
