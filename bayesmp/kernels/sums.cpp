// Sums over rows of arrays (n_rows, n) of float32, for all n columns at once: in float32 over a block of rows, then in
// double precision, so that the order of summation leaves no trace.

static const int64_t BLOCK = 64;     // rows
static const int64_t COLUMNS = 512;  // at a time

// What sums tell their terms, and its sums for the biases (messages/linear.py: residual, unit_sums), in one pass over
// the rows from begin to end. in: mean, var, input_var, tau, rho (n_rows, n), bias_var (n); where input_var is one number,
// is_constant. out: e, e_w, q (n_rows, n). sums: slope, rho, curvature (3, n), to be added to.
extern "C" void run_residual_sums(int64_t begin, int64_t end, int64_t n, int64_t is_constant, const float* const* in,
                                  float* const* out, double* sums) {
  for (int64_t left = 0; left < n; left += COLUMNS) {
    const int64_t width = n - left < COLUMNS ? n - left : COLUMNS;
    const float* __restrict bias_var = in[5] + left;
    float spread[COLUMNS];
    for (int64_t k = 0; is_constant && k < width; ++k) spread[k] = in[2][0];
    for (int64_t top = begin; top < end; top += BLOCK) {
      float slope[COLUMNS] = {0.0f}, precision[COLUMNS] = {0.0f}, curvature[COLUMNS] = {0.0f};
      const int64_t bottom = end - top < BLOCK ? end : top + BLOCK;
      for (int64_t row = top; row < bottom; ++row) {
        const int64_t at = row * n + left;
        const float *__restrict mean = in[0] + at, *__restrict var = in[1] + at, *__restrict tau = in[3] + at;
        const float *__restrict input_var = is_constant ? spread : in[2] + at, *__restrict rho = in[4] + at;
        float *__restrict to_input = out[0] + at, *__restrict to_weight = out[1] + at, *__restrict q = out[2] + at;
#pragma omp simd
        for (int64_t k = 0; k < width; ++k) {
          float e, e_w, p;
          residual(mean[k], var[k], input_var[k], tau[k], rho[k], e, e_w, p);
          to_input[k] = e, to_weight[k] = e_w, q[k] = p;
          slope[k] += e_w;
          precision[k] += rho[k] / (1.0f + rho[k] * at_least(var[k] - bias_var[k], 0.0f));
          curvature[k] += rho[k] / (1.0f + rho[k] * input_var[k]);
        }
      }
      double *__restrict to = sums + left;
      for (int64_t k = 0; k < width; ++k) to[k] += slope[k], to[n + k] += precision[k], to[2 * n + k] += curvature[k];
    }
  }
}

// How far a change goes against the spread of what it changes (messages/reach.py), from begin to end. in: mean, var,
// change. out: sums of mean - first, of its square, of var, and of change^2, where `first` is the first mean of all.
extern "C" void run_spread_sums(int64_t begin, int64_t stop, const float* const* in, double* out) {
  const float *__restrict mean = in[0], *__restrict var = in[1], *__restrict change = in[2], first = mean[0];
  for (int64_t left = begin; left < stop; left += COLUMNS) {
    const int64_t end = stop - left < COLUMNS ? stop : left + COLUMNS;
    float m = 0.0f, m2 = 0.0f, v = 0.0f, c2 = 0.0f;
#pragma omp simd reduction(+ : m, m2, v, c2)
    for (int64_t k = left; k < end; ++k) {
      const float d = mean[k] - first;
      m += d, m2 += d * d, v += var[k], c2 += change[k] * change[k];
    }
    out[0] += m, out[1] += m2, out[2] += v, out[3] += c2;
  }
}

// How many of n numbers are not above a bound; NaN is not counted.
extern "C" int64_t run_count_below(int64_t n, const float* __restrict x, float bound) {
  int64_t found = 0;
  for (int64_t left = 0; left < n; left += COLUMNS) {
    const int64_t end = n - left < COLUMNS ? n : left + COLUMNS;
    int32_t part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t k = left; k < end; ++k) part += x[k] <= bound;
    found += part;
  }
  return found;
}
