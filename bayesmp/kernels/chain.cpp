// A visit of the parallel schedule (training/schedules/parallel.py) to a chain of dense layers with activations between them, in two
// calls: out to the outputs, and, with the head's message, back, on to the metric, and along to the new means. Loops over
// elements are those of the functions above; products of matrices are BLAS's, as torch has it.
// Letters: n rows of the batch, i inputs and o outputs of a layer.

typedef void (*Product)(const char*, const char*, const int64_t*, const int64_t*, const int64_t*, const float*, const float*,
                        const int64_t*, const float*, const int64_t*, const float*, float*, const int64_t*);

// One layer, and the activation behind it (kernels/chain.py). Weights (o, i) begin at `start` of flat vectors, their biases
// follow. own_pull (n, o). Then the layer's metric, changed in place.
struct Dense {
  int64_t i, o, start, has_bias, knows_inputs;
  double leak, share, prior_rest;
  float *own_pull, *inputs, *slopes, *rest;
  const float *input_vectors, *slope_vectors, *inverse;
};

// A visit. x (n, i), marginal tau and rho (w), the site's slope and rho (w), origin, shift, offset and prior_rho (w), signs
// (n, o) and the head's tau and rho (n, o). outputs (2, n, o): mean and variance at the head. answers: step, largest change,
// rejected messages.
struct Visit {
  int64_t n_layers, n, n_weights, listens, n_sites, moment_rows, n_data;
  double metric_share, factor, stretch, max_reach, step_length;
  Product product;
  Dense* layers;
  const float* x;
  float *tau, *rho, *slope, *own_rho, *origin;
  double *shift, *offset;
  const float *prior_rho, *signs, *head_tau, *head_rho;
  float *outputs, *room;
  double* answers;
};

static const float ONE = 1.0f;

// What a sweep leaves at a layer: its input (mean, square, variance), its sums, what the activation makes of them, the
// message that comes back to them, what the layer makes of that (kernels/sums.py), and the message to its input, tau and
// rho one behind the other.
struct Left {
  const float *a, *a_var;
  float *a2, *z, *z_var, *z_input, *y, *y_var, *y_slope, *tau, *rho, *e, *e_w, *q, *curvature, *to_input;
  float per_weight;
};

// Pieces of one block of memory, the same in every call for a chain of these sizes.
struct Room {
  float* at;
  int64_t used;
  float* take(int64_t size) {
    float* found = at ? at + used : nullptr;
    used += (size + 15) / 16 * 16;
    return found;
  }
};

static const int64_t MAX_LAYERS = 16;  // as in chain.py

struct Work {
  Left left[MAX_LAYERS];
  float *w, *w_var, *second, *tau, *rho, *innovation, *direction, *matrix, *turned, *gram, *rows, *other_rows, *zeros;
  double* wide;
  int64_t size;
};

INLINE int64_t larger_of(int64_t a, int64_t b) { return a < b ? b : a; }

static Work work_of(const Visit& v) {
  Room room = {v.room, 0};
  Work work;
  int64_t widest = 0, largest = 0, side = 0;
  for (int64_t l = 0; l < v.n_layers; ++l) {
    const Dense& d = v.layers[l];
    Left& s = work.left[l];
    const int64_t n_in = v.n * d.i, n_out = v.n * d.o;
    widest = larger_of(widest, larger_of(d.i, d.o) + 1);
    largest = larger_of(largest, d.o * (d.i + 1));
    side = larger_of(side, larger_of(d.o, d.knows_inputs ? 0 : d.i + 1));
    s.a2 = room.take(n_in), s.to_input = room.take(2 * n_in);
    float** sums[] = {&s.z, &s.z_var, &s.z_input, &s.y, &s.y_var, &s.y_slope, &s.tau, &s.rho, &s.e, &s.e_w, &s.q};
    for (float** part : sums) *part = room.take(n_out);
    s.curvature = room.take(d.o);
    s.per_weight = 0.0f;
    s.a = l == 0 ? v.x : work.left[l - 1].y;
    s.a_var = l == 0 ? nullptr : work.left[l - 1].y_var;
  }
  float** flat[] = {&work.w, &work.w_var, &work.second, &work.tau, &work.rho, &work.innovation, &work.direction};
  for (float** part : flat) *part = room.take(v.n_weights);
  work.matrix = room.take(largest), work.turned = room.take(largest), work.gram = room.take(side * side);
  work.rows = room.take(v.n * widest), work.other_rows = room.take(v.n * widest);
  work.zeros = room.take(widest);
  work.wide = (double*)room.take(4 * largest + 6 * widest);
  work.size = room.used;
  return work;
}

// How many numbers `room` must hold.
extern "C" int64_t run_chain_room(const Visit* v) { return work_of(*v).size; }

// out (m, n) = a (m, k) b (k, n) + beta out, all by rows; `t` says that a matrix lies transposed.
static void multiply(const Visit& v, bool a_t, bool b_t, int64_t m, int64_t n, int64_t k, const float* a, const float* b,
                     float beta, float* out, int64_t width = 0) {
  const int64_t a_width = a_t ? m : k, b_width = b_t ? k : n;
  if (width == 0) width = n;
  v.product(b_t ? "T" : "N", a_t ? "T" : "N", &n, &m, &k, &ONE, b, &b_width, a, &a_width, &beta, out, &width);
}

INLINE void fill_rows(int64_t n, int64_t o, const float* __restrict row, float* __restrict out) {
  for (int64_t r = 0; r < n; ++r)
    if (row) memcpy(out + r * o, row, o * sizeof(float));
    else memset(out + r * o, 0, o * sizeof(float));
}

INLINE void times(int64_t n, const float* __restrict a, const float* __restrict b, float* __restrict out) {
  for (int64_t k = 0; k < n; ++k) out[k] = a[k] * b[k];
}

// c += a b
INLINE void add_product(int64_t n, const float* __restrict a, const float* __restrict b, float* __restrict c) {
  for (int64_t k = 0; k < n; ++k) c[k] += a[k] * b[k];
}

INLINE float mean_of(int64_t n, const float* __restrict x) {
  double total = 0.0;
  for (int64_t left = 0; left < n; left += COLUMNS) {
    const int64_t end = n - left < COLUMNS ? n : left + COLUMNS;
    float part = 0.0f;
#pragma omp simd reduction(+ : part)
    for (int64_t k = left; k < end; ++k) part += x[k];
    total += part;
  }
  return (float)(total / (double)n);
}

INLINE double dot(int64_t n, const float* __restrict a, const float* __restrict b) {
  double total = 0.0;
  for (int64_t left = 0; left < n; left += COLUMNS) {
    const int64_t end = n - left < COLUMNS ? n : left + COLUMNS;
    float part = 0.0f;
#pragma omp simd reduction(+ : part)
    for (int64_t k = left; k < end; ++k) part += a[k] * b[k];
    total += part;
  }
  return total;
}

INLINE double larger(double a, double b) { return a != a || b < a ? a : b; }  // NaN if one of them is

// Moments of all weights, and of every edge.
extern "C" void run_chain_out(const Visit* visit) {
  const Visit& v = *visit;
  Work work = work_of(v);
  for (int64_t l = 0; l < v.n_layers; ++l) {
    const Dense& d = v.layers[l];
    const Left& s = work.left[l];
    const int64_t size = d.o * d.i, n_out = v.n * d.o, bias = d.start + size, end = bias + (d.has_bias ? d.o : 0);
    const float share = (float)d.share;
#pragma omp simd
    for (int64_t k = d.start; k < end; ++k) {
      const float var = 1.0f / v.rho[k], mean = v.tau[k] * var;
      work.w[k] = mean, work.w_var[k] = var * share, work.second[k] = mean * mean + var * share;
    }
    times(v.n * d.i, s.a, s.a, s.a2);
    fill_rows(v.n, d.o, d.has_bias ? work.w + bias : nullptr, s.z);
    fill_rows(v.n, d.o, d.has_bias ? work.w_var + bias : nullptr, s.z_var);
    multiply(v, false, true, v.n, d.o, d.i, s.a, work.w + d.start, 1.0f, s.z);
    multiply(v, false, true, v.n, d.o, d.i, s.a2, work.w_var + d.start, 1.0f, s.z_var);
    if (s.a_var) {
      multiply(v, false, true, v.n, d.o, d.i, s.a_var, work.second + d.start, 0.0f, s.z_input);
      for (int64_t k = 0; k < n_out; ++k) s.z_var[k] += s.z_input[k];
    } else
      memset(s.z_input, 0, n_out * sizeof(float));
    if (d.own_pull) {  // without the example's own echo (training/schedules/own_pulls.py)
      const float* __restrict pull = d.own_pull;
#pragma omp simd
      for (int64_t k = 0; k < n_out; ++k) {
        s.z[k] -= (s.z_var[k] - s.z_input[k]) * pull[k];
        s.z_input[k] = s.z_var[k];
      }
    }
    if (l + 1 == v.n_layers) {
      memcpy(v.outputs, s.z, n_out * sizeof(float));
      memcpy(v.outputs + n_out, s.z_var, n_out * sizeof(float));
      return;
    }
    const float* in[2] = {s.z, s.z_var};
    float* out[3] = {s.y, s.y_var, s.y_slope};
    run_leaky_relu_to_output(0, n_out, 0, in, out, (float)d.leak);
  }
}

// The way back through one layer: messages to its weights, and to its inputs unless they are known.
static void layer_back(const Visit& v, const Work& work, int64_t l, const float* tau, const float* rho) {
  const Dense& d = v.layers[l];
  const Left& s = work.left[l];
  const int64_t size = d.o * d.i, bias = d.start + size;
  const float *w = work.w + d.start, *w_var = work.w_var + d.start;
  const float* bias_var = d.has_bias ? work.w_var + bias : work.zeros;
  float *to_tau = s.to_input, *to_rho = s.to_input + v.n * d.i;
  float *w_tau = work.tau + d.start, *w_rho = work.rho + d.start;
  double* sums = work.wide + 2 * size;
  memset(work.wide, 0, (2 * size + 3 * d.o) * sizeof(double));
  const float* in[6] = {s.z, s.z_var, s.z_input, tau, rho, bias_var};
  float* out[3] = {s.e, s.e_w, s.q};
  run_residual_sums(0, v.n, d.o, 0, in, out, sums);
  multiply(v, true, false, d.o, d.i, v.n, s.q, s.a2, 0.0f, w_rho);
  multiply(v, true, false, d.o, d.i, v.n, s.e_w, s.a, 0.0f, w_tau);
  add_product(size, w, w_rho, w_tau);
  if (s.a_var) {
    float* squares = work.matrix;
    times(size, w, w, squares);
    multiply(v, true, false, d.o, d.i, v.n, s.q, s.a_var, 1.0f, w_rho);
    multiply(v, false, false, v.n, d.i, d.o, s.q, squares, 0.0f, to_rho);
    multiply(v, false, false, v.n, d.i, d.o, s.e, w, 0.0f, to_tau);
    add_product(v.n * d.i, s.a, to_rho, to_tau);
    multiply(v, false, false, v.n, d.i, d.o, s.q, w_var, 1.0f, to_rho);
  }
  if (d.own_pull) memcpy(d.own_pull, s.e_w, v.n * d.o * sizeof(float));
  for (int64_t k = 0; k < d.o; ++k) {
    s.curvature[k] = (float)sums[2 * d.o + k];
    if (!d.has_bias) continue;
    work.rho[bias + k] = (float)sums[d.o + k];
    work.tau[bias + k] = (float)sums[k] + work.w[bias + k] * work.rho[bias + k];
  }
}

// a <- a + share (scale b - a), as torch's lerp rounds it
INLINE void approach(int64_t n, float share, float scale, const float* __restrict b, float* __restrict a) {
  const bool is_near = share < 0.5f;
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) {
    const float to = b[k] * scale, gap = to - a[k];
    a[k] = is_near ? a[k] + share * gap : to - gap * (1.0f - share);
  }
}

// What the metric hears: slopes of all outputs with random signs, pulled back to every layer, and moments of the inputs.
static void hear(const Visit& v, const Work& work, const float* output_curvature) {
  const Dense& last = v.layers[v.n_layers - 1];
  float *slope = work.rows, *below = work.other_rows;
  const float share = (float)v.metric_share;
  for (int64_t k = 0; k < v.n * last.o; ++k) slope[k] = v.signs[k] * sqrtf(output_curvature[k]);
  for (int64_t l = v.n_layers - 1; l >= 0; --l) {
    const Dense& d = v.layers[l];
    const Left& s = work.left[l];
    if (!d.knows_inputs) {
      const int64_t m = v.n < v.moment_rows ? v.n : v.moment_rows, width = d.i + (d.has_bias ? 1 : 0);
      multiply(v, true, false, d.i, d.i, m, s.a, s.a, 0.0f, work.gram, width);
      if (d.has_bias) {
        float* __restrict ones = work.gram + d.i * width;
        memset(ones, 0, width * sizeof(float));
        for (int64_t r = 0; r < m; ++r)
          for (int64_t k = 0; k < d.i; ++k) ones[k] += s.a[r * d.i + k];
        ones[d.i] = (float)m;
        for (int64_t k = 0; k < d.i; ++k) work.gram[k * width + d.i] = ones[k];
      }
      approach(width * width, share, 1.0f / (float)m, work.gram, d.inputs);
    }
    multiply(v, true, false, d.o, d.o, v.n, slope, slope, 0.0f, work.gram);
    for (int64_t k = 0; k < d.o; ++k) work.gram[k * d.o + k] += s.curvature[k];
    approach(d.o * d.o, share, 1.0f / (float)v.n, work.gram, d.slopes);
    const float rest = (float)d.prior_rest + s.per_weight * ((float)v.n_data / (float)v.n);
    approach(1, share, 1.0f, &rest, d.rest);
    if (l == 0) return;
    multiply(v, false, false, v.n, d.i, d.o, slope, work.w + d.start, 0.0f, below);
    times(v.n * d.i, below, work.left[l - 1].y_slope, slope);
  }
}

// The inverse metric of a layer applied to the innovation.
static void solve(const Visit& v, const Work& work, const Dense& d) {
  const int64_t width = d.i + (d.has_bias ? 1 : 0), bias = d.start + d.o * d.i;
  float *given = work.matrix, *turned = work.turned;
  for (int64_t r = 0; r < d.o; ++r) {
    memcpy(given + r * width, work.innovation + d.start + r * d.i, d.i * sizeof(float));
    if (d.has_bias) given[r * width + d.i] = work.innovation[bias + r];
  }
  multiply(v, true, false, d.o, width, d.o, d.slope_vectors, given, 0.0f, turned);
  multiply(v, false, false, d.o, width, width, turned, d.input_vectors, 0.0f, given);
  for (int64_t k = 0; k < d.o * width; ++k) given[k] *= d.inverse[k];
  multiply(v, false, false, d.o, width, d.o, d.slope_vectors, given, 0.0f, turned);
  multiply(v, false, true, d.o, width, width, turned, d.input_vectors, 0.0f, given);
  for (int64_t r = 0; r < d.o; ++r) {
    memcpy(work.direction + d.start + r * d.i, given + r * width, d.i * sizeof(float));
    if (d.has_bias) work.direction[bias + r] = given[r * width + d.i];
  }
}

// The share of the direction to take (training/schedules/parallel.py, _measure_step).
static double step_along(const Visit& v, const Work& work, const float* output_curvature) {
  double curvature = 0.0, squared_reach = 0.0;
  float *change = work.rows, *before = work.other_rows;
  for (int64_t l = 0; l < v.n_layers; ++l) {
    const Dense& d = v.layers[l];
    const Left& s = work.left[l];
    const int64_t size = d.o * d.i, n_out = v.n * d.o;
    const float* direction = work.direction + d.start;
    if (l > 0) times(v.n * d.i, change, work.left[l - 1].y_slope, before);
    fill_rows(v.n, d.o, d.has_bias ? direction + size : nullptr, change);
    multiply(v, false, true, v.n, d.o, d.i, s.a, direction, 1.0f, change);
    if (l > 0) multiply(v, false, true, v.n, d.o, d.i, before, work.w + d.start, 1.0f, change);
    curvature += (double)s.per_weight * dot(size, direction, direction);
    const float* in[3] = {s.z, s.z_var, change};
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    run_spread_sums(0, n_out, in, sums);
    const double n = (double)n_out, mean = sums[0] / n, spread = larger(sums[1] / n - mean * mean, 0.0) + sums[2] / n;
    squared_reach = larger(squared_reach, sums[3] / n / (spread + 1.17549435e-38));
  }
  const int64_t n_out = v.n * v.layers[v.n_layers - 1].o;
  times(n_out, change, change, before);
  curvature += dot(n_out, output_curvature, before);
  const double model = larger(dot(v.n_weights, work.innovation, work.direction), 1.17549435e-38);
  const double stiffness = curvature / model + (1.0 - 1.0 / (double)v.n_sites) / v.stretch;
  return 1.0 / larger(larger(stiffness, __builtin_sqrt(squared_reach) / v.max_reach), 1.0 / v.stretch);
}

// From the head's message to the new means.
extern "C" void run_chain_back(const Visit* visit) {
  const Visit& v = *visit;
  Work work = work_of(v);
  int64_t n_rejected = 0;
  for (int64_t l = v.n_layers - 1; l >= 0; --l) {
    const Dense& d = v.layers[l];
    Left& s = work.left[l];
    const bool is_last = l + 1 == v.n_layers;
    const float *tau = is_last ? v.head_tau : s.tau, *rho = is_last ? v.head_rho : s.rho;
    if (!d.has_bias) memset(work.zeros, 0, d.o * sizeof(float));
    layer_back(v, work, l, tau, rho);
    if (s.a_var) s.per_weight = mean_of(v.n * d.i, s.a_var) * mean_of(d.o, s.curvature);
    if (l == 0) break;
    const Left& under = work.left[l - 1];
    const float* in[4] = {under.z, under.z_var, s.to_input, s.to_input + v.n * d.i};
    float* out[2] = {under.tau, under.rho};
    run_leaky_relu_to_input(0, v.n * d.i, 0, in, out, (float)v.layers[l - 1].leak);
    n_rejected += run_count_below(v.n * d.i, under.rho, (float)1e-8);
  }
  const Left& top = work.left[v.n_layers - 1];
  const int64_t n_out = v.n * v.layers[v.n_layers - 1].o;
  float* output_curvature = top.e;  // of the head, at the outputs
  for (int64_t k = 0; k < n_out; ++k) output_curvature[k] = v.head_rho[k] / (1.0f + v.head_rho[k] * top.z_input[k]);

  const float* fresh[3] = {work.tau, work.rho, v.origin};
  run_take_site(v.n_weights, (float)(1.0 / v.factor - 1.0), (float)(v.factor - 1.0), fresh, v.shift, v.offset, v.slope,
                v.own_rho, v.rho, work.innovation);
  if (v.listens) hear(v, work, output_curvature);
  for (int64_t l = 0; l < v.n_layers; ++l) solve(v, work, v.layers[l]);
  const float step = (float)(v.step_length * step_along(v, work, output_curvature));
  const float* moving[5] = {work.direction, work.innovation, v.prior_rho, v.rho, &step};
  const float change = run_move_means(v.n_weights, 1.0 / (double)v.n_sites, moving, v.origin, v.tau, v.shift, v.offset);
  v.answers[0] = step, v.answers[1] = __builtin_sqrt((double)change), v.answers[2] = (double)n_rejected;
}
