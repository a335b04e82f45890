#pragma once
// The schedule for head dimensions past 128, whose dK and dV do not fit in one warpgroup: both warpgroups have the same 64 keys. Warpgroup 0
// computes P and holds dV, warpgroup 1 computes dS and holds dK; P^T goes from the one to the other through shared memory, and dQ is shared.
//
//   warpgroup 0: | S | P = exp2(S - LSE), to shared memory | dV issued ............ | dQ, its columns | to the writer |
//   warpgroup 1: | dP ................................ | dS = P (dP - dpsum), to shared memory | dQ, its columns; dK | to the writer |
//
// What goes to the writer in one pass it hears of behind the next block's first product.
#include <flashgen/fa3/backward/consumer.cuh>

namespace flashgen::fa3::backward {

template <class Config, int kDqColumns>
struct Values : Consumer<Config, kDqColumns> {
  using Base = Consumer<Config, kDqColumns>;
  using typename Base::S;
  using Base::kM;
  using Base::Base;

  __device__ __forceinline__ void compute(int m_block, float (&dv)[Config::kHeadDimV / 2]) {
    float s[kM / 2];
    this->await_q();
    this->issue_scores(s);
    this->pass_dq_before();
    wgmma_wait<0>();
    wgmma_hold(s);
    this->exponentiate(s, m_block);
    // The other warpgroup has read the P before this one: it then wrote dS, which this one waited for.
    float4* const to = reinterpret_cast<float4*>(this->smem.p) + this->thread;
    CUTE_UNROLL
    for (int j = 0; j < kM / 8; ++j) to[j * 128] = make_float4(s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]);
    ptx::named_arrive(kPReady, 256);
    uint32_t p[kM / 4];
    S::convert(p, s);
    this->await_dout();
    this->issue_dv(dv, p);
    ptx::named_sync(kDsReady, 256);
    float dq[kDqColumns / 2];
    this->issue_dq(dq);
    this->release_q();
    wgmma_wait<1>();
    wgmma_hold(dv);
    this->release_dout();
    wgmma_wait<0>();
    wgmma_hold(dq);
    this->hand_over(dq);
    this->step = this->step.next();
  }

  __device__ __forceinline__ void run() {
    float dv[Config::kHeadDimV / 2];
    clear(dv);
    if (this->tile.is_seen(this->params)) this->await_keys();
    this->tile.for_each_m_block(this->params, [&](int, int m_block) { compute(m_block, dv); });
    this->pass_dq_before();
    this->store_dv(this->tile_again(), dv);
  }
};

template <class Config, int kDqColumns>
struct Keys : Consumer<Config, kDqColumns> {
  using Base = Consumer<Config, kDqColumns>;
  using typename Base::S;
  using Base::kM;
  using Base::Base;

  __device__ __forceinline__ void compute(float (&dk)[Config::kHeadDimQK / 2]) {
    float dp[kM / 2], p[kM / 2];
    this->await_dout();
    this->issue_dp(dp);
    this->pass_dq_before();
    ptx::named_sync(kPReady, 256);
    float4 const* const from = reinterpret_cast<float4 const*>(this->smem.p) + this->thread;
    CUTE_UNROLL
    for (int j = 0; j < kM / 8; ++j) {
      float4 const x = from[j * 128];
      p[4 * j] = x.x, p[4 * j + 1] = x.y, p[4 * j + 2] = x.z, p[4 * j + 3] = x.w;
    }
    wgmma_wait<0>();
    wgmma_hold(dp);
    S::differentiate(dp, p, this->smem.dpsum[this->dout()], this->thread);
    uint32_t pair[kM / 4];
    S::convert(pair, dp);
    S::store(this->smem.ds, pair, 0, this->thread);  // the other warpgroup's product has read the dS before: it then wrote this P
    ptx::fence_async_proxy();
    ptx::named_sync(kDsReady, 256);
    this->release_dout();
    this->await_q();
    float dq[kDqColumns / 2];
    this->issue_dq(dq);
    this->issue_dk(dk, pair);
    wgmma_wait<1>();
    wgmma_hold(dq);
    this->hand_over(dq);
    wgmma_wait<0>();
    wgmma_hold(dk);
    this->release_q();
    this->step = this->step.next();
  }

  __device__ __forceinline__ void run() {
    float dk[Config::kHeadDimQK / 2];
    clear(dk);
    if (this->tile.is_seen(this->params)) this->await_keys();
    this->tile.for_each_m_block(this->params, [&](int, int) { compute(dk); });
    this->pass_dq_before();
    this->store_dk(this->tile_again(), dk);
  }
};

}  // namespace flashgen::fa3::backward
