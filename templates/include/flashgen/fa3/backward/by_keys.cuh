#pragma once
// The schedule for head dimensions whose dK and dV one warpgroup holds (up to 128 if they are equal): each of two has 64 keys. S^T and dP^T are
// computed transposed, so that P^T and dS^T stay in registers as A operands; only dS goes through shared memory, for dQ, which both warpgroups share.
//
//   | S dP issued | P = exp2(S - LSE) | dS = P (dP - dpsum), to shared memory | dV issued | both have dS | dQ dK issued | dQ to its writer | dK done |
//
// Products keep shared memory busy, so that what a warp writes there takes some 300 cycles to arrive. So dS is written before dV, whose steps hold
// the warp anyway (its A operand is in registers), and the writer hears of dQ behind the next block's first products.
#include <flashgen/fa3/backward/consumer.cuh>

namespace flashgen::fa3::backward {

template <class Config, int kDqColumns>
struct ByKeys : Consumer<Config, kDqColumns> {
  using Base = Consumer<Config, kDqColumns>;
  using typename Base::DqPart;
  using typename Base::S;
  using typename Base::T;
  using Base::kM;
  using Base::Base;
  static_assert(Config::kMaskLoops || !Config::kLateP, "what asks for each block has no use for the registers that a late P frees");
  static_assert(Config::kStagesDs >= 2, "a warpgroup may write the next dS while the other still reads this one");
  static_assert(Config::kDqPasses == 1, "a warpgroup hands over its part of dQ at once");

  typename Base::KeyOperand keys;

  template <typename Base::Masked kMasked>
  __device__ __forceinline__ void compute(int m_block, float (&dk)[Config::kHeadDimQK / 2], float (&dv)[Config::kHeadDimV / 2]) {
    float s[kM / 2], dp[kM / 2];
    this->await_q();
    if constexpr (Config::kKeysInRegisters) this->issue_scores(s, keys);
    else this->issue_scores(s);
    this->await_dout();
    this->issue_dp(dp);
    this->pass_dq_before();
    wgmma_wait<1>();
    wgmma_hold(s);
    this->template exponentiate<kMasked>(s, m_block);
    uint32_t p[kM / 4], pair[kM / 4];
    if constexpr (!Config::kLateP) S::convert(p, s);
    wgmma_wait<0>();
    wgmma_hold(dp);
    if constexpr (Config::kPersistent) {
      if (this->step.index + 1 == this->end) this->release(&this->smem.keys.v_empty);
    }
    S::differentiate(dp, s, this->smem.dpsum[this->dout()], this->thread);
    S::convert(pair, dp);
    S::store(this->smem.ds + this->ds() * T::Ds::kBytes, pair, this->first_row, this->thread);
    if constexpr (Config::kLateP) S::convert(p, s);  // dP has left its registers
    this->issue_dv(dv, p);
    ptx::fence_async_proxy();
    ptx::named_sync(kDsReady, 256);
    if constexpr (kDqColumns > 0) {
      DqPart dq;
      this->issue_dq(dq);
      this->issue_dk(dk, pair);
      wgmma_wait<1>();
      wgmma_hold(dq);
      wgmma_hold(dv);
      this->release_dout();
      this->write_dq(dq);
    } else {
      this->issue_dk(dk, pair);
      wgmma_wait<1>();
      wgmma_hold(dv);
      this->release_dout();
    }
    wgmma_wait<0>();
    wgmma_hold(dk);
    this->release_q();
    this->step = this->step.next();
  }

  // All blocks of rows. With kMaskLoops masked ones have a loop of their own, so that the other one neither asks nor keeps what asking takes; else
  // one loop asks for each.
  __device__ __forceinline__ void compute_all(float (&dk)[Config::kHeadDimQK / 2], float (&dv)[Config::kHeadDimV / 2]) {
    if constexpr (!Config::kMaskLoops) {
      int m_block = this->tile.start;
      CUTE_NO_UNROLL
      while (this->step.index < this->end) {
        compute<Base::kSome>(m_block, dk, dv);
        m_block = this->tile.after(this->params, m_block);
      }
    } else if constexpr (S::Mask::kUnevenKeys) {
      CUTE_NO_UNROLL
      while (this->step.index < this->end) {  // a head at a time: its masked blocks are the first ones, or all
        int m_block = this->tile.first_m_block;
        CUTE_NO_UNROLL
        for (; m_block < this->params.m_blocks && this->is_masked(m_block); ++m_block) compute<Base::kAll>(m_block, dk, dv);
        CUTE_NO_UNROLL
        for (; m_block < this->params.m_blocks; ++m_block) compute<Base::kNone>(m_block, dk, dv);
      }
    } else if (this->is_masked(0)) {  // all are or none is, wherever the rows stand
      CUTE_NO_UNROLL
      while (this->step.index < this->end) compute<Base::kAll>(0, dk, dv);
    } else {
      CUTE_NO_UNROLL
      while (this->step.index < this->end) compute<Base::kNone>(0, dk, dv);
    }
    if constexpr (!Config::kPersistent) this->pass_dq(this->step.before());  // else behind the next products, whosever they are
  }

  __device__ __forceinline__ void run() {
    float dk[Config::kHeadDimQK / 2], dv[Config::kHeadDimV / 2];
    clear(dk);
    clear(dv);
    if constexpr (Config::kPersistent) {
      if (this->step.index != this->end) {
        this->load_keys(keys);
        compute_all(dk, dv);
      } else {
        this->release(&this->smem.keys.v_empty);
      }
      KeyTile<Config> const at = this->tile_again();
      ptx::barrier_arrive(&this->smem.keys.k_empty);
      this->store_dk(at, dk);
      this->store_dv(at, dv);
    } else {
      if (this->tile.blocks(this->params) > 0) {
        this->await_keys();
        this->load_keys(keys);
        compute_all(dk, dv);
      }
      this->store_dk(this->tile_again(), dk);
      this->store_dv(this->tile_again(), dv);
    }
  }
};

}  // namespace flashgen::fa3::backward
