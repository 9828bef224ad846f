/* The loops of noise.c for one type: TYPE in memory, float in registers. An example is a row. */

/* A full vector, or the last few elements of a row, padded by zeros. */
static inline vf NAME(read)(const TYPE *p, int64_t left)
{
    if (left >= LANES) return LOAD(p);
    TYPE few[LANES] = {0};
    memcpy(few, p, (size_t)(left > 0 ? left : 0) * sizeof(TYPE));
    return LOAD(few);
}

static inline void NAME(write)(TYPE *p, vf x, int64_t left)
{
    if (left >= LANES) {
        STORE(p, x);
        return;
    }
    TYPE few[LANES];
    STORE(few, x);
    memcpy(p, few, (size_t)(left > 0 ? left : 0) * sizeof(TYPE));
}

/* Sums of deviations from a first guess, which is near enough to lose nothing in float. */
typedef struct { vf sum, squares; double total, total_squares; float guess; } NAME(gathered);

static inline void NAME(gather)(NAME(gathered) *all, vf x, int64_t at)
{
    vf d = x - all->guess;
    all->sum += d;
    all->squares += d * d;
    if (at % CHUNK == CHUNK - LANES) {
        all->total += total(all->sum);
        all->total_squares += total(all->squares);
        all->sum = all->squares = (vf){0};
    }
}

static void NAME(conclude)(NAME(gathered) *all, int64_t count, float *mean, float *deviation)
{
    double middle = (all->total + total(all->sum)) / (double)count;
    double square = (all->total_squares + total(all->squares)) / (double)count - middle * middle;
    *mean = (float)(all->guess + middle);
    *deviation = (float)sqrt(square > 0 ? square : square * 0); /* NaN stays */
}

/* Mean and standard deviation of a row. */
static void NAME(moments)(const TYPE *x, int64_t count, float *mean, float *deviation)
{
    NAME(gathered) all = {.guess = NAME(read)(x, count)[0]};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) NAME(gather)(&all, LOAD(x + i), i);
    if (i < count) {
        vf rest = NAME(read)(x + i, count - i);
        for (int64_t lane = count - i; lane < LANES; lane++) rest[lane] = all.guess;
        NAME(gather)(&all, rest, i);
    }
    NAME(conclude)(&all, count, mean, deviation);
}

/* to = from + scale n, for one row */
static void NAME(disturb)(const TYPE *from, TYPE *to, int64_t count, float scale, uint64_t key,
                          uint64_t row)
{
    uint64_t chunks = (uint64_t)((count + CHUNK - 1) / CHUNK);
    for (uint64_t chunk = 0; chunk < chunks; chunk++) {
        int64_t i = (int64_t)chunk * CHUNK, end = i + CHUNK < count ? i + CHUNK : count;
        bits state = start(key, row * chunks + chunk);
        vf first, second;
        for (; i + DRAWS <= end; i += DRAWS) {
            normals(&state, &first, &second);
            STORE(to + i, LOAD(from + i) + scale * first);
            STORE(to + i + LANES, LOAD(from + i + LANES) + scale * second);
        }
        if (i < end) {
            int64_t j = i + LANES;
            normals(&state, &first, &second);
            NAME(write)(to + i, NAME(read)(from + i, end - i) + scale * first, end - i);
            NAME(write)(to + j, NAME(read)(from + j, end - j) + scale * second, end - j);
        }
    }
}

/* y = x + noise * deviation n */
void NAME(inject)(const TYPE *x, TYPE *y, int64_t rows, int64_t count, float noise, uint64_t key,
                  float *mean, float *deviation, int threads)
{
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        const TYPE *from = x + row * count;
        NAME(moments)(from, count, mean + row, deviation + row);
        NAME(disturb)(from, y + row * count, count, noise * deviation[row], key, (uint64_t)row);
    }
}

/* The gradient with respect to x. */
void NAME(inject_backward)(const TYPE *g, const TYPE *x, const TYPE *y, TYPE *out, int64_t rows,
                           int64_t count, const float *mean, const float *deviation, int threads)
{
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        const TYPE *a = g + row * count, *b = x + row * count, *c = y + row * count;
        TYPE *to = out + row * count;
        double whole = 0;
        vf sum = {0};
        for (int64_t i = 0; i < count; i += LANES) {
            int64_t left = count - i;
            sum += NAME(read)(a + i, left) * (NAME(read)(c + i, left) - NAME(read)(b + i, left));
            if (i % CHUNK == CHUNK - LANES) { whole += total(sum); sum = (vf){0}; }
        }
        whole += total(sum);
        /* noise <g, n> / (count deviation) = <g, y - x> / (count deviation^2); flat rows have 0 */
        double variance = (double)deviation[row] * deviation[row];
        float slope = variance > 0 ? (float)(whole / ((double)count * variance)) : 0.0f;
        float middle = mean[row];
        for (int64_t i = 0; i < count; i += LANES) {
            int64_t left = count - i;
            vf value = NAME(read)(a + i, left) + slope * (NAME(read)(b + i, left) - middle);
            NAME(write)(to + i, value, left);
        }
    }
}

/* N(0, 1) draws */
void NAME(normal)(TYPE *y, int64_t count, uint64_t key, int threads)
{
    int64_t chunks = (count + CHUNK - 1) / CHUNK;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        int64_t i = chunk * CHUNK, end = i + CHUNK < count ? i + CHUNK : count;
        bits state = start(key, (uint64_t)chunk);
        for (; i < end; i += DRAWS) {
            vf first, second;
            normals(&state, &first, &second);
            NAME(write)(y + i, first, end - i);
            NAME(write)(y + i + LANES, second, end - i - LANES);
        }
    }
}

/* g = 0 where the ReLU was off, in place. */
void NAME(mask)(TYPE *g, const TYPE *active, int64_t count, int threads)
{
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t chunk = 0; chunk < count; chunk += CHUNK) {
        int64_t end = chunk + CHUNK < count ? chunk + CHUNK : count;
        for (int64_t i = chunk; i < end; i += LANES) {
            vf value = NAME(read)(g + i, end - i);
            vi on = ~(NAME(read)(active + i, end - i) <= 0.0f);
            NAME(write)(g + i, (vf)((vi)value & on), end - i);
        }
    }
}

static inline vf NAME(activated)(vf y, const float *scale, const float *shift)
{
    vf x = y * load_float(scale) + load_float(shift);
    return (vf)((vi)x & ~(x <= 0.0f)); /* NaN stays */
}

/* The seam between two residual blocks of a network that is attacked, channels last:
 *
 *   z = residual + skip,  y = z + noise * std(z) n,  active = relu(scale y + shift)
 *
 * scale and shift are what BatchNorm amounts to in evaluation; channels is a multiple of LANES. */
void NAME(seam)(const TYPE *residual, const TYPE *skip, const float *scale, const float *shift,
                TYPE *z, TYPE *y, TYPE *active, int64_t rows, int64_t count, int64_t channels,
                float noise, uint64_t key, float *mean, int threads)
{
    float *deviation = mean + rows;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        const TYPE *a = residual + row * count, *b = skip ? skip + row * count : 0;
        TYPE *sum = z + row * count, *to = y + row * count, *on = active + row * count;
        if (!(noise > 0)) {
            for (int64_t i = 0; i < count; i += channels)
                for (int64_t c = 0; c < channels; c += LANES) {
                    vf x = LOAD(a + i + c);
                    if (b) {
                        STORE(sum + i + c, x + LOAD(b + i + c));
                        x = LOAD(sum + i + c); /* as it is stored */
                    }
                    STORE(on + i + c, NAME(activated)(x, scale + c, shift + c));
                }
            continue;
        }
        NAME(gathered) all = {.guess = LOAD(a)[0]};
        for (int64_t i = 0; i < count; i += LANES) {
            vf x = LOAD(a + i);
            if (b) {
                x += LOAD(b + i);
                STORE(sum + i, x);
            }
            NAME(gather)(&all, x, i);
        }
        NAME(conclude)(&all, count, mean + row, deviation + row);
        float s = noise * deviation[row];
        uint64_t chunks = (uint64_t)((count + CHUNK - 1) / CHUNK);
        for (uint64_t chunk = 0; chunk < chunks; chunk++) {
            int64_t i = (int64_t)chunk * CHUNK, end = i + CHUNK < count ? i + CHUNK : count;
            int64_t c = i % channels;
            bits state = start(key, (uint64_t)row * chunks + chunk);
            while (i < end) {
                vf draws[2];
                normals(&state, &draws[0], &draws[1]);
                for (int half = 0; half < 2 && i < end; half++, i += LANES) {
                    vf x = LOAD(sum + i) + s * draws[half];
                    STORE(to + i, x);
                    STORE(on + i, NAME(activated)(x, scale + c, shift + c));
                    c = c + LANES == channels ? 0 : c + LANES;
                }
            }
        }
    }
}

/* Its gradient, the same for residual and skip; of g_y and g_active one may be missing. */
void NAME(seam_backward)(const TYPE *g_y, const TYPE *g_active, const float *scale, const TYPE *z,
                         const TYPE *y, const TYPE *active, TYPE *out, int64_t rows, int64_t count,
                         int64_t channels, float noise, const float *mean, int threads)
{
    const float *deviation = mean + rows;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        int64_t offset = row * count;
        const TYPE *sum = z + offset, *to = y + offset;
        TYPE *g = out + offset;
        double whole = 0;
        vf dot = {0};
        for (int64_t i = 0; i < count; i += channels)
            for (int64_t c = 0; c < channels; c += LANES) {
                int64_t at = i + c;
                vf value = {0};
                if (g_active) {
                    vf through = LOAD(g_active + offset + at) * load_float(scale + c);
                    value = (vf)((vi)through & (LOAD(active + offset + at) > 0.0f));
                }
                if (g_y) value += LOAD(g_y + offset + at);
                STORE(g + at, value);
                if (noise > 0) {
                    dot += value * (LOAD(to + at) - LOAD(sum + at));
                    if (at % CHUNK == CHUNK - LANES) { whole += total(dot); dot = (vf){0}; }
                }
            }
        if (!(noise > 0)) continue;
        whole += total(dot);
        double variance = (double)deviation[row] * deviation[row];
        float slope = variance > 0 ? (float)(whole / ((double)count * variance)) : 0.0f;
        float middle = mean[row];
        for (int64_t i = 0; i < count; i += LANES)
            STORE(g + i, LOAD(g + i) + slope * (LOAD(sum + i) - middle));
    }
}
