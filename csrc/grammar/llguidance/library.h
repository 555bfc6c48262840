// LLGuidance's C interface, resolved from the installed wheel.
#pragma once

#include <memory>
#include <string>

#include "grammar/llguidance/abi.h"

namespace weft {

// Resolves the interface from the installed library (an absolute path). Returns "" on success, else what is missing.
// May be called again; after the first success it does nothing.
std::string llguidance_bind(const char *library_path);

namespace llg {

// The resolved functions, valid after a successful bind.
extern Api api;

// Throws std::logic_error before a successful llguidance_bind.
void need_binding();

// Returns an LLGuidance message without the dump of state or stack that may follow it.
std::string tidy(const char *text);

struct FreeMatcher {
  void operator()(Matcher *matcher) const { api.free_matcher(matcher); }
};
using Handle = std::unique_ptr<Matcher, FreeMatcher>;

}  // namespace llg
}  // namespace weft
