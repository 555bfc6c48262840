#include "guided/clock.h"

#include <algorithm>
#include <numeric>

#include "support/awake.h"
#include "support/thread_time.h"
#include "support/timer.h"

namespace weft {
namespace {

constexpr std::array<const char *, GuideClock::kNumParts> kPartNames = {"masks", "taking tokens", "taking tokens back",
                                                                        "trying drafts", "forced text"};

// Reading the CPU time is a system call, which takes microseconds when the caches are cold. So a shorter lap than this
// counts as work in full.
constexpr std::int64_t kGrainNs = 250'000;

// A longer lap needs a reading from before it. The time between that reading and the lap counts as work, which may hide
// as much of the lap's work. So a reading is used for at most this fraction of the limit, and at most kMaxAgeNs.
constexpr std::int64_t kAges = 400, kMaxAgeNs = 5'000'000;

std::string milliseconds(std::int64_t ns) { return std::to_string(ns / 1'000'000) + " ms"; }

}  // namespace

thread_local GuideClock::Reading GuideClock::last_reading;

GuideClock::Reading GuideClock::read_at(std::int64_t passed_ns) {
  return last_reading = {passed_ns, thread_cpu_ns() + worked_for_thread_ns};
}

GuideClock::GuideClock(double limit_s, std::int64_t min_total_ns)
    : limit_ns_(static_cast<std::int64_t>(limit_s * 1e9)),
      total_limit_ns_(std::max(limit_ns_, min_total_ns)),
      max_age_ns_(std::clamp(limit_ns_ / kAges, kGrainNs, kMaxAgeNs)) {}

void GuideClock::reset() {
  restart();
  owed_ns_ = 0;
}

void GuideClock::restart(int tokens) {
  owed_ns_ = std::max<std::int64_t>(0, owed_ns_ + work_ns() - tokens * (limit_ns_ / kShares));
  work_ns_.fill(0);
  without_work_ns_ = awake_without_work_ns_ = 0;
}

void GuideClock::begin() {
  if (limit_ns_ <= 0) return;
  lap_began_ns_ = now_ns();
  lap_began_awake_ns_ = awake_ns();
  lap_began_calls_ = calls_that_may_wait;
  base_ = lap_began_ns_ - last_reading.passed_ns < max_age_ns_ ? last_reading : read_at(lap_began_ns_);
}

void GuideClock::lap(Part part) {
  if (limit_ns_ <= 0) return;
  const std::int64_t now = now_ns();
  const std::int64_t passed = now - lap_began_ns_;
  std::int64_t work = passed;
  if (passed >= kGrainNs || now - base_.passed_ns >= max_age_ns_) {
    const Reading reading = read_at(now);
    // Do not count work between the base reading and the start of the lap.
    const std::int64_t before = lap_began_ns_ - base_.passed_ns;
    if (passed >= kGrainNs) work = std::clamp<std::int64_t>(reading.work_ns - base_.work_ns - before, 0, passed);
    base_ = reading;
  }
  work_ns_[part] += work;
  const std::int64_t awake = awake_ns();
  if (calls_that_may_wait != lap_began_calls_) {
    without_work_ns_ += passed - work;
    awake_without_work_ns_ += awake - lap_began_awake_ns_ - work;
  }
  lap_began_ns_ = now;
  lap_began_awake_ns_ = awake;
  lap_began_calls_ = calls_that_may_wait;
}

std::int64_t GuideClock::work_ns() const { return std::accumulate(work_ns_.begin(), work_ns_.end(), std::int64_t{0}); }

std::int64_t GuideClock::waited_ns() const {
  return std::max<std::int64_t>(0, std::min(without_work_ns_, awake_without_work_ns_));
}

std::string GuideClock::problem() const {
  std::string parts;
  for (int part = 0; part < kNumParts; ++part)
    if (work_ns_[part] >= 1'000'000)
      parts += (parts.empty() ? " (" : ", ") + std::string(kPartNames[part]) + " " + milliseconds(work_ns_[part]);
  if (!parts.empty()) parts += ")";
  const bool works = owed_ns_ + work_ns() > limit_ns_;
  if (works && work_ns() <= limit_ns_)
    return "the guide took " + milliseconds(work_ns()) + " of work" + parts +
           " within one token, after others that took " + milliseconds(owed_ns_) + " more than " +
           milliseconds(limit_ns_ / kShares) + " each, over the limit of " + milliseconds(limit_ns_) +
           " together; raise mask_time_limit_s, or give a simpler guide";
  return "the guide took " + milliseconds(work_ns()) + " of work" + parts +
         (works ? "" : " and " + milliseconds(waited_ns()) + " of waiting") + " within one token, over the limit of " +
         milliseconds(works ? limit_ns_ : total_limit_ns_) + (works ? "" : " for both together") +
         "; raise mask_time_limit_s, or give a simpler guide";
}

}  // namespace weft
