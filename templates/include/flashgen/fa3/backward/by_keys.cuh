#pragma once
// The schedule for head dimensions up to 128: each of two consumer warpgroups has 64 keys and holds their dK and dV. S^T and dP^T are computed
// transposed, so that P^T and dS^T stay in registers as A operands; only dS goes through shared memory, for dQ, which both warpgroups share.
//
//   | S dP issued | P = exp2(S - LSE) | dS = P (dP - dpsum) | dV issued | dS to shared memory, both | dQ dK issued | dQ to its writer | dK done |
#include <flashgen/fa3/backward/consumer.cuh>

namespace flashgen::fa3::backward {

template <class Config, int kDqColumns>
struct ByKeys : Consumer<Config, kDqColumns> {
  using Base = Consumer<Config, kDqColumns>;
  using typename Base::S;
  using typename Base::T;
  using Base::kM;
  using Base::Base;
  static_assert(Config::kStagesDs >= 2, "a warpgroup may write the next dS while the other still reads this one");

  __device__ __forceinline__ void compute(int m_block, float (&dk)[Config::kHeadDimQK / 2], float (&dv)[Config::kHeadDimV / 2]) {
    float s[kM / 2], dp[kM / 2];
    this->await_q();
    this->issue_scores(s);
    this->await_dout();
    this->issue_dp(dp);
    wgmma_wait<1>();
    wgmma_hold(s);
    this->exponentiate(s, m_block);
    uint32_t p[kM / 4];
    S::convert(p, s);
    wgmma_wait<0>();
    wgmma_hold(dp);
    S::differentiate(dp, s, this->smem.dpsum[this->dout()], this->thread);
    this->issue_dv(dv, p);
    uint32_t pair[kM / 4];
    S::convert(pair, dp);
    S::store(this->smem.ds + this->ds() * T::Ds::kBytes, pair, this->first_row, this->thread);
    ptx::fence_async_proxy();
    ptx::named_sync(kDsReady, 256);
    if constexpr (kDqColumns > 0) {
      float dq[kDqColumns / 2];
      this->issue_dq(dq);
      this->issue_dk(dk, pair);
      wgmma_wait<1>();
      wgmma_hold(dq);
      wgmma_hold(dv);
      this->release_dout();
      this->pass_dq(dq);
    } else {
      this->issue_dk(dk, pair);
      wgmma_wait<1>();
      wgmma_hold(dv);
      this->release_dout();
    }
    wgmma_wait<0>();
    wgmma_hold(dk);
    this->release_q();
    ++this->step.index;
  }

  __device__ __forceinline__ void run() {
    float dk[Config::kHeadDimQK / 2], dv[Config::kHeadDimV / 2];
    clear(dk);
    clear(dv);
    this->await_keys();
    this->tile.for_each_m_block(this->params, [&](int, int m_block) { compute(m_block, dk, dv); });
    this->store_dk(dk);
    this->store_dv(dv);
  }
};

}  // namespace flashgen::fa3::backward
