// Shares out the work of one call over a few persistent threads, a team.
//
// The caller works too, and helpers only take rows that are not begun, so a helper that comes late is not waited for;
// one that loses its core amid its rows is. A helper that was of use spins for its next call, as long as a host takes
// between two iterations, and then sleeps: through an iteration each is woken once. One call at a time has the team; a
// second one that comes meanwhile does its rows alone. Where the team is slower than the caller alone, as beside other
// busy programs, calls leave it be for a while. Results must not depend on who does what. Safe after fork.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>

namespace weft {

// The rows of a call. Each worker has a part of its own, which it claims in order, range by range: what it reads next
// is what comes next. Whoever is done takes half of what another has left, from its end.
class Claims {
 public:
  static constexpr int kMostWorkers = 64;

  // `rows`, below 2^32, in ranges of at least `least` of them; `workers` is 1 to kMostWorkers.
  Claims(std::int64_t rows, std::int64_t least, int workers) : least_(least), workers_(workers) {
    for (int w = 0; w < workers; ++w) parts_[w].left.store({bound(rows, w), bound(rows, w + 1)});
  }
  bool next(int worker, std::int64_t &begin, std::int64_t &end) {
    return take(worker, begin, end) || steal(worker, begin, end);
  }

 private:
  struct Range {
    std::uint32_t begin, end;
    std::int64_t size() const { return static_cast<std::int64_t>(end) - begin; }
  };
  struct alignas(64) Part {
    std::atomic<Range> left;
  };
  static_assert(std::atomic<Range>::is_always_lock_free);

  // Where a worker's part begins.
  std::uint32_t bound(std::int64_t rows, int worker) const {
    return static_cast<std::uint32_t>(rows * worker / workers_);
  }

  bool take(int worker, std::int64_t &begin, std::int64_t &end) {
    std::atomic<Range> &own = parts_[worker].left;
    for (Range left = own.load(); left.size() > 0;) {
      const auto taken = static_cast<std::uint32_t>(std::min(std::max(least_, left.size() / kPieces), left.size()));
      if (!own.compare_exchange_weak(left, {left.begin + taken, left.end})) continue;
      begin = left.begin, end = left.begin + taken;
      return true;
    }
    return false;
  }

  bool steal(int worker, std::int64_t &begin, std::int64_t &end) {
    for (int other = worker + 1; other < worker + workers_; ++other) {
      std::atomic<Range> &theirs = parts_[other % workers_].left;
      for (Range left = theirs.load(); left.size() > 0;) {
        const auto taken = static_cast<std::uint32_t>(std::min(std::max(least_, (left.size() + 1) / 2), left.size()));
        if (!theirs.compare_exchange_weak(left, {left.begin, left.end - taken})) continue;
        parts_[worker].left.store({left.end - taken, left.end});  // nobody takes from an empty part
        if (take(worker, begin, end)) return true;
        break;  // another took all of it
      }
    }
    return false;
  }

  static constexpr std::int64_t kPieces = 8;
  const std::int64_t least_;
  const int workers_;
  Part parts_[kMostWorkers];
};

// One worker's claims: it works until there are none.
class Share {
 public:
  Share(Claims &claims, int worker) : claims_(claims), worker_(worker) {}

  bool next(std::int64_t &begin, std::int64_t &end) {
    const bool found = claims_.next(worker_, begin, end);
    count_ += found;
    return found;
  }
  // How many ranges it claimed.
  int count() const { return count_; }

 private:
  Claims &claims_;
  const int worker_;
  int count_ = 0;
};

using WorkFunction = void (*)(void *context, Share &share);

// Calls fn(context, share) on at most `threads` threads (and Claims::kMostWorkers), the caller among them, which
// together claim [0, rows). `cost` is that of a row, in some twentieths of a nanosecond: bytes read from far away, or
// products.
void for_workers(std::int64_t rows, int threads, std::int64_t cost, WorkFunction fn, void *context);

template <class F>
void for_workers(std::int64_t rows, int threads, std::int64_t cost, F &&fn) {
  using Fn = std::remove_reference_t<F>;
  for_workers(rows, threads, cost, [](void *f, Share &share) { (*static_cast<Fn *>(f))(share); }, &fn);
}

// Calls fn(begin, end) over disjoint ranges that cover [0, rows).
template <class F>
void for_rows(std::int64_t rows, int threads, std::int64_t cost, F &&fn) {
  for_workers(rows, threads, cost, [&fn](Share &share) {
    for (std::int64_t begin, end; share.next(begin, end);) fn(begin, end);
  });
}

}  // namespace weft
