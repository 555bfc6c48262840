// What a slot's guide takes within one token: a stopwatch around everything that calls its matcher. Python-free.
//
// Work is the processor's time, of the calling thread and of threads that work for it. It alone is held against the
// limit, so that a busy machine ends no request. A matcher that waits keeps its neighbours waiting all the same,
// so that work and waiting together have a limit too, which is never below kLeastTotal. Only what runs Python or is
// linked by others can wait (support/awake.h); a matcher of a library that has no work left is kept from a processor.
// For the same reason waiting is time in which the process ran: one that is stopped ends no request either.
//
// A guide that stays just below the limit with each token would keep its neighbours waiting all the same. So what a
// token takes beyond its share, an eighth of the limit, is owed, and what is owed counts against the limit of the next.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace weft {

class GuideClock {
 public:
  // What the time went to; the message names them.
  enum Part : int { kMasks, kTaking, kTakingBack, kTrying, kForcing };
  static constexpr int kNumParts = 5;
  static constexpr std::int64_t kLeastTotalNs = 2'000'000'000;
  static constexpr int kShares = 8;  // of the limit; a token has one

  GuideClock() = default;
  // 0: no limit, and then nothing is measured.
  explicit GuideClock(double limit_s, std::int64_t least_total_ns = kLeastTotalNs);

  // Another guide begins: nothing is owed.
  void reset();
  // New tokens begin; those before took the work of so many.
  void restart(int tokens = 1);
  // On the thread that calls the matcher: from here on, and what has passed since `begin` or the last lap.
  void begin();
  void lap(Part part);

  bool is_over() const {
    return limit_ns_ > 0 && (owed_ns_ + work_ns() > limit_ns_ || work_ns() + waited_ns() > total_limit_ns_);
  }
  // What took how long, and what raises the limit.
  std::string problem() const;

  std::int64_t work_ns() const;
  std::int64_t waited_ns() const;
  std::int64_t owed_ns() const { return owed_ns_; }

 private:
  std::int64_t limit_ns_ = 0, total_limit_ns_ = 0;
  struct Reading {
    std::int64_t passed_ns = 0, work_ns = 0;
  };
  static thread_local Reading last_reading;
  static Reading read_at(std::int64_t passed_ns);

  std::int64_t lap_began_ns_ = 0, lap_began_awake_ns_ = 0, lap_began_calls_ = 0;
  Reading base_;  // less than a grain before the lap began
  std::array<std::int64_t, kNumParts> work_ns_{};
  // Of laps that called what may wait. A lap is short beside a tick, but all of a token's together are not.
  std::int64_t without_work_ns_ = 0, awake_without_work_ns_ = 0;
  std::int64_t owed_ns_ = 0;
};

}  // namespace weft
