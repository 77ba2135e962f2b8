// Sums over disjoint 2 x 2 windows, read and written where they are in the image.
//
// A run of n_inner windows is worked on at once. Where the channels of an image lie apart, it is a row of windows, whose
// first elements are 2 apart (step 2); where channels come last, it is one window of every channel (step 1). next_x and
// next_y lead from the first element of a window to the others. Shares are four arrays of `size` windows.

struct Windows {
  int64_t n_outer, n_rows, n_columns, n_inner;  // runs, and windows in each
  int64_t outer, row, column;                   // steps in the image from one run to the next
  int64_t next_x, next_y, size;
};

using Inputs = const float* const*;
using Outputs = float* const*;
#define FOUR(x) x[step * k], x[step * k + w.next_x], x[step * k + w.next_y], x[step * k + w.next_x + w.next_y]

// in: mean, var (images). out: share, mean, var (windows).
template <int step> INLINE void max_pool(const Windows& w, int64_t from, int64_t to, Inputs in, Outputs out, float noise) {
  const float *__restrict mean = in[0] + from, *__restrict var = in[1] + from;
  float *__restrict p0 = out[0] + to, *__restrict p1 = p0 + w.size, *__restrict p2 = p1 + w.size;
  float *__restrict p3 = p2 + w.size, *__restrict out_mean = out[1] + to, *__restrict out_var = out[2] + to;
#pragma omp simd
  for (int64_t k = 0; k < w.n_inner; ++k) {
    float q0, q1, q2, q3, m, v;
    max_of_four(FOUR(mean), FOUR(var), noise, q0, q1, q2, q3, m, v);
    p0[k] = q0, p1[k] = q1, p2[k] = q2, p3[k] = q3, out_mean[k] = m, out_var[k] = v;
  }
}

// in: mean, var (images), share, sum_mean, sum_var, tau, rho (windows). out: tau, rho (images).
template <int step> INLINE void pool_to_input(const Windows& w, int64_t from, int64_t to, Inputs in, Outputs out, float) {
  const float *__restrict sum_mean = in[3] + to, *__restrict sum_var = in[4] + to;
  const float *__restrict tau = in[5] + to, *__restrict rho = in[6] + to;
  const int64_t next[4] = {0, w.next_x, w.next_y, w.next_x + w.next_y};
  for (int entry = 0; entry < 4; ++entry) {
    const float *__restrict mean = in[0] + from + next[entry], *__restrict var = in[1] + from + next[entry];
    const float *__restrict share = in[2] + to + entry * w.size;
    float *__restrict out_tau = out[0] + from + next[entry], *__restrict out_rho = out[1] + from + next[entry];
#pragma omp simd
    for (int64_t k = 0; k < w.n_inner; ++k) {
      float t, r;
      weighted_sum_to_input(share[k], mean[step * k], var[step * k], sum_mean[k], sum_var[k], tau[k], rho[k], t, r);
      out_tau[step * k] = t, out_rho[step * k] = r;
    }
  }
}

// in: image, share. out: their products, summed over each window.
template <int step> INLINE void pool_sum(const Windows& w, int64_t from, int64_t to, Inputs in, Outputs out, float) {
  const float *__restrict x = in[0] + from, *__restrict p0 = in[1] + to, *__restrict p1 = p0 + w.size;
  const float *__restrict p2 = p1 + w.size, *__restrict p3 = p2 + w.size;
  float* __restrict y = out[0] + to;
#pragma omp simd
  for (int64_t k = 0; k < w.n_inner; ++k) {
    float first = p0[k] * x[step * k] + p1[k] * x[step * k + w.next_x];
    y[k] = first + p2[k] * x[step * k + w.next_y] + p3[k] * x[step * k + w.next_x + w.next_y];
  }
}

// in: one number per window, share. out: the image of their products.
template <int step> INLINE void pool_spread(const Windows& w, int64_t from, int64_t to, Inputs in, Outputs out, float) {
  const float *__restrict y = in[0] + to, *__restrict p0 = in[1] + to, *__restrict p1 = p0 + w.size;
  const float *__restrict p2 = p1 + w.size, *__restrict p3 = p2 + w.size;
  float *__restrict x = out[0] + from, *__restrict right = x + w.next_x;
  float *__restrict below = x + w.next_y, *__restrict corner = below + w.next_x;
#pragma omp simd
  for (int64_t k = 0; k < w.n_inner; ++k) {
    x[step * k] = p0[k] * y[k], right[step * k] = p1[k] * y[k];
    below[step * k] = p2[k] * y[k], corner[step * k] = p3[k] * y[k];
  }
}

#define EACH_RUN(function, step)                                                                                \
  for (int64_t i = begin; i < end; ++i)                                                                         \
    for (int64_t j = 0; j < w->n_rows; ++j)                                                                     \
      for (int64_t l = 0; l < w->n_columns; ++l)                                                                \
        function<step>(*w, i * w->outer + j * w->row + l * w->column,                                           \
                       ((i * w->n_rows + j) * w->n_columns + l) * w->n_inner, in, out, option);
#define EXPORT(function)                                                                                        \
  extern "C" void run_##function(const Windows* w, int64_t begin, int64_t end, Inputs in, Outputs out, float option) { \
    if (w->next_x == 1) EACH_RUN(function, 2) else EACH_RUN(function, 1)                                        \
  }
EXPORT(max_pool)
EXPORT(pool_to_input)
EXPORT(pool_sum)
EXPORT(pool_spread)
