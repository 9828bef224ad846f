/* The loops of noise.c for one type: TYPE in memory, float in registers. An example is a row. */

/* DRAWS elements, or the last few of a row, padded by zeros. */
static inline pair NAME(read)(const TYPE *p, int64_t left)
{
    if (left >= DRAWS) return LOAD(p);
    TYPE few[DRAWS] = {0};
    memcpy(few, p, (size_t)left * sizeof(TYPE));
    return LOAD(few);
}

static inline void NAME(write)(TYPE *p, pair x, int64_t left)
{
    if (left >= DRAWS) {
        STORE(p, x);
        return;
    }
    TYPE few[DRAWS];
    STORE(few, x);
    memcpy(p, few, (size_t)left * sizeof(TYPE));
}

/* What comes after the end of a row counts as the guess, from which it does not deviate. */
static inline pair NAME(ended)(pair x, int64_t left, float guess)
{
    int wide = sizeof(TYPE) == sizeof(float);
    if (left >= DRAWS) return x;
    for (int j = 0; j < LANES; j++) {
        if ((wide ? j : 2 * j) >= left) x.a[j] = guess;
        if ((wide ? LANES + j : 2 * j + 1) >= left) x.b[j] = guess;
    }
    return x;
}

/* Mean and standard deviation of a row. */
static void NAME(moments)(const TYPE *x, int64_t count, float *mean, float *deviation)
{
    gathered all = {.guess = NAME(read)(x, count).a[0]};
    for (int64_t i = 0; i < count; i += DRAWS) {
        pair at = NAME(read)(x + i, count - i);
        gather(&all, NAME(ended)(at, count - i, all.guess), i);
    }
    conclude(&all, count, mean, deviation);
}

/* to = from + scale n, for one row */
static void NAME(disturb)(const TYPE *from, TYPE *to, int64_t count, float scale, uint64_t key,
                          uint64_t row)
{
    uint64_t chunks = (uint64_t)((count + CHUNK - 1) / CHUNK);
    for (uint64_t chunk = 0; chunk < chunks; chunk++) {
        int64_t i = (int64_t)chunk * CHUNK, end = i + CHUNK < count ? i + CHUNK : count;
        bits state = start(key, row * chunks + chunk);
        for (; i < end; i += DRAWS) {
            pair n, x = NAME(read)(from + i, end - i);
            normals(&state, &n.a, &n.b);
            NAME(write)(to + i, (pair){x.a + scale * n.a, x.b + scale * n.b}, end - i);
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

/* <g, to - from>, for one row */
static double NAME(along)(const TYPE *g, const TYPE *from, const TYPE *to, int64_t count)
{
    double whole = 0;
    vf sum = {0};
    for (int64_t i = 0; i < count; i += DRAWS) {
        int64_t left = count - i;
        pair v = NAME(read)(g + i, left), x = NAME(read)(from + i, left);
        pair y = NAME(read)(to + i, left);
        sum += v.a * (y.a - x.a);
        sum += v.b * (y.b - x.b);
        if (i % CHUNK == CHUNK - DRAWS) { whole += total(sum); sum = (vf){0}; }
    }
    return whole + total(sum);
}

/* What g must be tilted by, from along = <g, y - x>; flat rows have 0. */
static float NAME(slope)(double along, int64_t count, float deviation)
{
    /* noise <g, n> / (count deviation) = <g, y - x> / (count deviation^2) */
    double variance = (double)deviation * deviation;
    return variance > 0 ? (float)(along / ((double)count * variance)) : 0.0f;
}

/* out = g + slope (x - mean), for one row */
static void NAME(tilt)(const TYPE *g, const TYPE *x, TYPE *out, int64_t count, float mean,
                       float slope)
{
    for (int64_t i = 0; i < count; i += DRAWS) {
        pair v = NAME(read)(g + i, count - i), at = NAME(read)(x + i, count - i);
        pair moved = {v.a + slope * (at.a - mean), v.b + slope * (at.b - mean)};
        NAME(write)(out + i, moved, count - i);
    }
}

/* The gradient with respect to x. */
void NAME(inject_backward)(const TYPE *g, const TYPE *x, const TYPE *y, TYPE *out, int64_t rows,
                           int64_t count, const float *mean, const float *deviation, int threads)
{
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = row * count;
        double along = NAME(along)(g + at, x + at, y + at, count);
        float slope = NAME(slope)(along, count, deviation[row]);
        NAME(tilt)(g + at, x + at, out + at, count, mean[row], slope);
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
            pair n;
            normals(&state, &n.a, &n.b);
            NAME(write)(y + i, n, end - i);
        }
    }
}

/* g = 0 where the ReLU was off, in place; -0 is off too. */
void NAME(mask)(TYPE *g, const TYPE *active, int64_t count, int threads)
{
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t chunk = 0; chunk < count; chunk += CHUNK) {
        int64_t end = chunk + CHUNK < count ? chunk + CHUNK : count;
        for (int64_t i = chunk; i < end; i++) g[i] = NAME(on)(active[i]) ? g[i] : 0;
    }
}

/* The numbers of channels, in the order in which elements are loaded. */
static void NAME(spread)(table *to, const float *values, int64_t channels)
{
    to->period = channels % DRAWS == 0 ? channels / DRAWS : channels / LANES;
    for (int64_t i = 0; i < to->period; i++)
        for (int64_t j = 0; j < LANES; j++) {
            int64_t at = i * DRAWS, wide = sizeof(TYPE) == sizeof(float);
            to->all[i].a[j] = values[(at + (wide ? j : 2 * j)) % channels];
            to->all[i].b[j] = values[(at + (wide ? LANES + j : 2 * j + 1)) % channels];
        }
}

static inline pair NAME(activated)(pair y, pair scale, pair shift)
{
    vf a = y.a * scale.a + shift.a, b = y.b * scale.b + shift.b;
    return (pair){zeroed(a, a <= 0.0f), zeroed(b, b <= 0.0f)}; /* NaN stays */
}

/* z = residual + skip, and its mean and deviation, for one row */
static void NAME(sum)(const TYPE *residual, const TYPE *skip, TYPE *z, int64_t count, float *mean,
                      float *deviation)
{
    gathered all = {.guess = NAME(read)(residual, count).a[0]};
    for (int64_t i = 0; i < count; i += DRAWS) {
        pair x = NAME(read)(residual + i, count - i);
        if (skip) {
            pair other = NAME(read)(skip + i, count - i);
            x = (pair){x.a + other.a, x.b + other.b};
            NAME(write)(z + i, x, count - i);
        }
        gather(&all, NAME(ended)(x, count - i, all.guess), i);
    }
    conclude(&all, count, mean, deviation);
}

/* The seam between two residual blocks of a network that is attacked, channels last:
 *
 *   z = residual + skip,  y = z + noise * std(z) n,  active = relu(scale y + shift) */
void NAME(seam)(const TYPE *residual, const TYPE *skip, const float *scale, const float *shift,
                TYPE *z, TYPE *y, TYPE *active, int64_t rows, int64_t count, int64_t channels,
                float noise, uint64_t key, float *mean, int threads)
{
    float *deviation = mean + rows;
    table scales, shifts;
    NAME(spread)(&scales, scale, channels);
    NAME(spread)(&shifts, shift, channels);
    uint64_t chunks = (uint64_t)((count + CHUNK - 1) / CHUNK);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        const TYPE *a = residual + row * count, *b = skip ? skip + row * count : 0;
        TYPE *sum = z + row * count, *to = y + row * count, *on = active + row * count;
        int64_t place = 0;
        if (!(noise > 0)) {
            for (int64_t i = 0; i < count; i += DRAWS) {
                pair x = NAME(read)(a + i, count - i);
                if (b) {
                    pair other = NAME(read)(b + i, count - i);
                    x = (pair){x.a + other.a, x.b + other.b};
                    NAME(write)(sum + i, x, count - i);
                    x = NAME(read)(sum + i, count - i); /* as it is stored */
                }
                x = NAME(activated)(x, scales.all[place], shifts.all[place]);
                NAME(write)(on + i, x, count - i);
                place = place + 1 == scales.period ? 0 : place + 1;
            }
            continue;
        }
        NAME(sum)(a, b, sum, count, mean + row, deviation + row);
        float s = noise * deviation[row];
        for (uint64_t chunk = 0; chunk < chunks; chunk++) {
            int64_t i = (int64_t)chunk * CHUNK, end = i + CHUNK < count ? i + CHUNK : count;
            bits state = start(key, (uint64_t)row * chunks + chunk);
            for (; i < end; i += DRAWS) {
                pair n, x = NAME(read)(sum + i, end - i);
                normals(&state, &n.a, &n.b);
                x = (pair){x.a + s * n.a, x.b + s * n.b};
                NAME(write)(to + i, x, end - i);
                x = NAME(activated)(x, scales.all[place], shifts.all[place]);
                NAME(write)(on + i, x, end - i);
                place = place + 1 == scales.period ? 0 : place + 1;
            }
        }
    }
}

/* Its gradient, the same for residual and skip; g_y may be missing. */
void NAME(seam_backward)(const TYPE *g_y, const TYPE *g_active, const float *scale, const TYPE *z,
                         const TYPE *y, const TYPE *active, TYPE *out, int64_t rows, int64_t count,
                         int64_t channels, float noise, const float *mean, int threads)
{
    const float *deviation = mean + rows;
    table scales;
    NAME(spread)(&scales, scale, channels);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        int64_t offset = row * count, place = 0;
        TYPE *g = out + offset;
        double along = 0;
        vf sum = {0};
        for (int64_t i = 0; i < count; i += DRAWS) {
            int64_t at = offset + i, left = count - i;
            pair v = NAME(read)(g_active + at, left), on = NAME(read)(active + at, left);
            v.a = zeroed(v.a * scales.all[place].a, on.a == 0.0f);
            v.b = zeroed(v.b * scales.all[place].b, on.b == 0.0f);
            if (g_y) {
                pair other = NAME(read)(g_y + at, left);
                v = (pair){v.a + other.a, v.b + other.b};
            }
            NAME(write)(g + i, v, left);
            if (noise > 0) {
                pair from = NAME(read)(z + at, left), to = NAME(read)(y + at, left);
                v = NAME(read)(g + i, left); /* as it is stored */
                sum += v.a * (to.a - from.a);
                sum += v.b * (to.b - from.b);
                if (i % CHUNK == CHUNK - DRAWS) { along += total(sum); sum = (vf){0}; }
            }
            place = place + 1 == scales.period ? 0 : place + 1;
        }
        if (noise > 0) {
            float slope = NAME(slope)(along + total(sum), count, deviation[row]);
            NAME(tilt)(g, z + offset, g, count, mean[row], slope);
        }
    }
}

/* Every step-th pixel of every step-th line, channels last: few = all[::step, ::step] */
void NAME(take)(const TYPE *all, TYPE *few, int64_t rows, int64_t height, int64_t width,
                int64_t channels, int64_t step, int threads)
{
    int64_t lines = (height + step - 1) / step, places = (width + step - 1) / step;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t line = 0; line < rows * lines; line++) {
        const TYPE *from = all + (line / lines * height + line % lines * step) * width * channels;
        TYPE *to = few + line * places * channels;
        for (int64_t place = 0; place < places; place++)
            memcpy(to + place * channels, from + place * step * channels,
                   (size_t)channels * sizeof(TYPE));
    }
}

/* all[::step, ::step] += few */
void NAME(give)(const TYPE *few, TYPE *all, int64_t rows, int64_t height, int64_t width,
                int64_t channels, int64_t step, int threads)
{
    int64_t lines = (height + step - 1) / step, places = (width + step - 1) / step;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t line = 0; line < rows * lines; line++) {
        TYPE *to = all + (line / lines * height + line % lines * step) * width * channels;
        const TYPE *from = few + line * places * channels;
        for (int64_t place = 0; place < places; place++)
            for (int64_t i = 0; i < channels; i++) {
                TYPE *at = to + place * step * channels + i;
                *at = NAME(plus)(*at, from[place * channels + i]);
            }
    }
}
