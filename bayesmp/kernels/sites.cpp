// A visit's arithmetic on flat vectors of all n weights, each in one pass (training/schedules/site_step.py).

// A site replaced by what its batch says now. in: tau, rho (fresh), origin. shift, offset: in double precision. slope,
// own_rho: of the site, replaced. rho: of the marginal, which follows. innovation: what is new of the slope.
extern "C" void run_take_site(int64_t n, float lower, float upper, const float* const* in, const double* __restrict shift,
                              const double* __restrict offset, float* __restrict slope, float* __restrict own_rho,
                              float* __restrict rho, float* __restrict innovation) {
  const float *__restrict tau = in[0], *__restrict fresh_rho = in[1], *__restrict origin = in[2];
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) {
    const float fresh = tau[k] - fresh_rho[k] * origin[k], old = own_rho[k];
    const float lowest = old + lower * rho[k], highest = old + upper * rho[k];
    const float raised = fresh_rho[k] < lowest ? lowest : fresh_rho[k], taken = highest < raised ? highest : raised;
    const float stored = fresh - (float)(shift[k] + (double)taken * offset[k]);
    const double other_share = ((double)taken - (double)old) * offset[k];
    innovation[k] = (float)(((double)stored - (double)slope[k]) + other_share);  // as rounded, so that the balance stays
    slope[k] = stored;
    own_rho[k] = taken;
    rho[k] += taken - old;
  }
}

// The means moved by a step along a direction. in: direction, innovation, prior_rho, rho (of the marginal), step (one
// number). origin, tau (of the marginal), shift and offset follow. share: of a site in what all share equally, 1 / number of
// sites. Returns the largest square of a change, over the posterior variance.
extern "C" float run_move_means(int64_t n, double share, const float* const* in, float* __restrict origin,
                                float* __restrict tau, double* __restrict shift, double* __restrict offset) {
  const float *__restrict direction = in[0], *__restrict innovation = in[1], *__restrict prior_rho = in[2];
  const float *__restrict rho = in[3], step = in[4][0];
  float largest = 0.0f;
  int32_t n_invalid = 0;
#pragma omp simd reduction(max : largest) reduction(+ : n_invalid)
  for (int64_t k = 0; k < n; ++k) {
    const float moved = origin[k] + step * direction[k], change = moved - origin[k];  // as rounded
    origin[k] = moved;
    const double part = (double)(prior_rho[k] * change - innovation[k]) / (double)rho[k];
    offset[k] += part;
    shift[k] += share * part * (double)prior_rho[k];
    tau[k] = rho[k] * moved;
    const float size = change * change * rho[k];
    largest = largest < size ? size : largest;
    n_invalid += size != size;  // NaN, which `<` does not see
  }
  return n_invalid > 0 ? __builtin_nanf("") : largest;
}
