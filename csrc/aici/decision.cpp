#include "aici/decision.h"

#include <algorithm>

#include "aici/base/json.h"
#include "aici/base/limits.h"

namespace weft::aici {
namespace {

[[noreturn]] void fail(const std::string &problem) { throw ProgramError("the program's result " + problem); }

std::vector<std::int32_t> tokens_of(const JsonValue &value, const char *key, int num_tokens) {
  const JsonValue *member = value.find(key);
  if (!member) return {};
  if (member->kind != JsonValue::kNumbers) fail(std::string("has a ") + key + " that is no list of tokens");
  std::vector<std::int32_t> tokens;
  tokens.reserve(member->numbers.size());
  for (const double number : member->numbers) {
    if (!(number >= 0 && number < num_tokens) || number != static_cast<std::int32_t>(number))
      fail(std::string("has a ") + key + " with " + std::to_string(number) + ", which is not a token (0 to " +
           std::to_string(num_tokens - 1) + ")");
    tokens.push_back(static_cast<std::int32_t>(number));
  }
  return tokens;
}

double number_of(const JsonValue &value, const char *key, double otherwise) {
  const JsonValue *member = value.find(key);
  if (!member) return otherwise;
  if (member->kind != JsonValue::kNumber) fail(std::string("has a ") + key + " that is no number");
  return member->number;
}

Splice splice_from(const JsonValue &value, bool samples, int num_tokens) {
  if (value.kind != JsonValue::kObject) fail("has a splice that is no object");
  Splice splice;
  splice.when_sampled = tokens_of(value, "when_sampled", num_tokens);
  std::sort(splice.when_sampled.begin(), splice.when_sampled.end());
  splice.tokens = tokens_of(value, "ff_tokens", num_tokens);
  const double backtrack = number_of(value, "backtrack", 0);
  if (backtrack != 0 && backtrack != 1) fail("takes back more than one token, which weft does not do (get_config)");
  if (backtrack == 1 && !samples) fail("takes back a token where none is sampled, which weft does not do (get_config)");
  splice.replaces = backtrack == 1;
  return splice;
}

// Returns the items of a list of objects. An empty list was parsed as a list of numbers, so it is handled separately.
const std::vector<JsonValue> &list_of(const JsonValue &value, const char *key) {
  static const std::vector<JsonValue> kNone;
  const JsonValue *member = value.find(key);
  if (!member || (member->kind == JsonValue::kNumbers && member->numbers.empty())) return kNone;
  if (member->kind != JsonValue::kArray) fail(std::string("has ") + key + " that are no list");
  return member->items;
}

// Moves the mask that the program returned in this step into its decision.
void take_mask(Host &host, double ticket, Decision &decision) {
  if (!host.has_mask || ticket != host.ticket)
    fail("names a mask that it did not return in this step (aici_host_return_logit_bias)");
  decision.mask = std::move(host.mask);
  // Clear the bits after the last token, which the program may have set.
  if (const int bits = host.program->num_tokens % 32)
    decision.mask.back() &= static_cast<std::int32_t>((1u << bits) - 1);
  if (std::all_of(decision.mask.begin(), decision.mask.end(), [](std::int32_t word) { return word == 0; }))
    fail("allows no token at all");
}

}  // namespace

bool Decision::allows(std::int32_t token) const {
  return static_cast<std::uint32_t>(mask[static_cast<std::size_t>(token / 32)]) >> (token % 32) & 1u;
}

const Splice *Decision::splice_of(std::int32_t token) const {
  for (const Splice &splice : splices)
    if (splice.when_sampled.empty() ||
        std::binary_search(splice.when_sampled.begin(), splice.when_sampled.end(), token))
      return &splice;
  return nullptr;
}

Decision read_decision(Host &host) {
  const JsonValue result = parse_json(host.result, "the program's result");
  if (!result.find("branches")) fail("has no branches");
  const std::vector<JsonValue> &branches = list_of(result, "branches");
  Decision decision;
  decision.stops = branches.empty();
  if (decision.stops) return decision;
  if (branches.size() > 1) fail("forks, which weft does not do for programs (get_config)");
  const JsonValue &branch = branches.front();
  if (branch.kind != JsonValue::kObject) fail("has a branch that is no object");

  const JsonValue *ticket = branch.find("sample_mask");
  const double temperature = number_of(branch, "temperature", -1);
  if (branch.find("temperature") && !(temperature >= 0 && temperature <= 100))
    fail("has a temperature that is not 0 to 100");
  decision.temperature = static_cast<float>(temperature);
  for (const JsonValue &splice : list_of(branch, "splices"))
    decision.splices.push_back(splice_from(splice, ticket != nullptr, host.program->num_tokens));
  if (ticket) {
    if (ticket->kind != JsonValue::kNumber) fail("has a sample_mask that is no number");
    take_mask(host, ticket->number, decision);
  } else {
    if (decision.splices.size() != 1 || !decision.splices[0].when_sampled.empty())
      fail("neither samples (sample_mask) nor has one splice for whatever was sampled");
    decision.forced = std::move(decision.splices[0].tokens);
    decision.splices.clear();
  }
  return decision;
}

std::string json_tokens(const std::vector<std::int32_t> &tokens) {
  std::string text = "[";
  for (const std::int32_t token : tokens) {
    if (text.size() > 1) text += ',';
    text += std::to_string(token);
  }
  return text + "]";
}

std::string step_argument(const std::vector<std::int32_t> &tokens, std::int32_t sampled, std::uint32_t sequence) {
  return R"({"backtrack":0,"tokens":)" + json_tokens(tokens) + R"(,"sampled":)" +
         (sampled < 0 ? "null" : std::to_string(sampled)) + R"(,"fork_group":[)" + std::to_string(sequence) + "]}";
}

}  // namespace weft::aici
