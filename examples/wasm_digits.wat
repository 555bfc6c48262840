;; A constraint in WebAssembly's text form: the answer is a number of exactly so many digits as the argument says.
;; The same in C, and shorter: wasm_digits.c. docs/wasm.md explains the interface.
;;
;;     weft generate "The year: " --wasm wasm_digits.wat --wasm-arg 4
(module
  (import "env" "aici_host_read_blob" (func $read_blob (param i32 i32 i32) (result i32)))
  (import "env" "aici_host_token_trie" (func $token_trie (result i32)))
  (import "env" "aici_host_module_arg" (func $module_arg (result i32)))
  (import "env" "aici_host_process_arg" (func $process_arg (result i32)))
  (import "env" "aici_host_return_logit_bias" (func $return_mask (param i32) (result i32)))
  (import "env" "aici_host_return_process_result" (func $return_result (param i32 i32)))

  ;; 0 the answers' text, 256 the answer being written, 65536 what is read; after it the vocabulary, the mask.
  (memory (export "memory") 2)
  (data (i32.const 0) "{\"branches\":[{\"sample_mask\":")
  (data (i32.const 64) ",\"temperature\":null,\"splices\":[]}]}")
  (data (i32.const 128) "{\"branches\":[]}")

  (global $left (mut i32) (i32.const 0))     ;; digits to come
  (global $trie (mut i32) (i32.const 0))     ;; where the vocabulary is
  (global $tokens (mut i32) (i32.const 0))   ;; how many tokens it has
  (global $offsets (mut i32) (i32.const 0))  ;; where each token's bytes are
  (global $bytes (mut i32) (i32.const 0))    ;; all tokens' bytes
  (global $mask (mut i32) (i32.const 0))     ;; a bit for each token

  ;; As many bytes after all that is there.
  (func $take (param $size i32) (result i32) (local $begin i32)
    (local.set $begin (i32.mul (memory.size) (i32.const 65536)))
    (if (i32.eq (i32.const -1)
                (memory.grow (i32.div_u (i32.add (local.get $size) (i32.const 65535)) (i32.const 65536))))
      (then unreachable))
    (local.get $begin))

  ;; The call's argument to 65536, with a zero after it: its length.
  (func $read_argument (result i32) (local $size i32)
    (local.set $size (call $read_blob (call $process_arg) (i32.const 65536) (i32.const 65535)))
    (i32.store8 (i32.add (i32.const 65536) (local.get $size)) (i32.const 0))
    (local.get $size))

  (func $is_digit (param $char i32) (result i32)
    (i32.lt_u (i32.sub (local.get $char) (i32.const 48)) (i32.const 10)))

  ;; The number at $at, until the first character that is no digit.
  (func $number (param $at i32) (result i32) (local $value i32)
    (block $end
      (loop $next
        (br_if $end (i32.eqz (call $is_digit (i32.load8_u (local.get $at)))))
        (local.set $value (i32.add (i32.mul (local.get $value) (i32.const 10))
                                   (i32.sub (i32.load8_u (local.get $at)) (i32.const 48))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $next)))
    (local.get $value))

  (func $length (param $token i32) (result i32)
    (i32.and (i32.load (i32.add (global.get $offsets) (i32.shl (local.get $token) (i32.const 2))))
             (i32.const 1023)))

  ;; Whether a token is digits, and not too many.
  (func $fits (param $token i32) (result i32) (local $at i32) (local $end i32)
    (local.set $end (call $length (local.get $token)))
    (if (i32.or (i32.eqz (local.get $end)) (i32.gt_u (local.get $end) (global.get $left)))
      (then (return (i32.const 0))))
    (local.set $at (i32.add (global.get $bytes)
      (i32.shr_u (i32.load (i32.add (global.get $offsets) (i32.shl (local.get $token) (i32.const 2))))
                 (i32.const 10))))
    (local.set $end (i32.add (local.get $end) (local.get $at)))
    (loop $next
      (if (i32.eqz (call $is_digit (i32.load8_u (local.get $at)))) (then (return (i32.const 0))))
      (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 1))) (local.get $end))))
    (i32.const 1))

  ;; The lengths of the tokens of the call's argument, {"backtrack":0,"tokens":[1,2],...}, go off the digits to come.
  (func $take_tokens (local $at i32) (local $char i32)
    (drop (call $read_argument))
    (local.set $at (i32.const 65536))
    (loop $seek  ;; the list is the first that there is
      (local.set $char (i32.load8_u (local.get $at)))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $seek (i32.ne (local.get $char) (i32.const 91))))
    (if (i32.eq (i32.load8_u (local.get $at)) (i32.const 93)) (then (return)))
    (loop $each
      (global.set $left (i32.sub (global.get $left) (call $length (call $number (local.get $at)))))
      (loop $digits
        (local.set $char (i32.load8_u (local.get $at)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br_if $digits (call $is_digit (local.get $char))))
      (br_if $each (i32.eq (local.get $char) (i32.const 44)))))

  (func (export "aici_init"))

  ;; Once for each request: read the vocabulary and the argument. The number that is returned comes with each call.
  (func (export "aici_create") (result i32) (local $size i32)
    (local.set $size (call $read_blob (call $token_trie) (i32.const 0) (i32.const 0)))
    (global.set $trie (call $take (local.get $size)))
    (drop (call $read_blob (call $token_trie) (global.get $trie) (local.get $size)))
    (global.set $tokens (i32.load offset=20 (global.get $trie)))
    (global.set $offsets (i32.add (i32.add (global.get $trie) (i32.load offset=4 (global.get $trie)))
                                  (i32.load offset=8 (global.get $trie))))
    (global.set $bytes (i32.add (global.get $offsets) (i32.load offset=12 (global.get $trie))))
    (global.set $mask (call $take (i32.mul (i32.div_u (i32.add (global.get $tokens) (i32.const 31)) (i32.const 32))
                                           (i32.const 4))))
    (local.set $size (call $read_blob (call $module_arg) (i32.const 65536) (i32.const 16)))
    (global.set $left (call $number (i32.const 65536)))
    (i32.const 1))

  ;; The prompt goes back as it came.
  (func (export "aici_init_prompt") (param $self i32) (local $size i32) (local $at i32)
    (local.set $size (call $read_blob (call $process_arg) (i32.const 0) (i32.const 0)))
    (local.set $at (call $take (local.get $size)))
    (drop (call $read_blob (call $process_arg) (local.get $at) (local.get $size)))
    (call $return_result (local.get $at) (local.get $size)))

  ;; Once for each token, and once before the first: take what was written, say what may follow.
  (func (export "aici_mid_process") (param $self i32) (local $token i32)
    (call $take_tokens)
    (if (i32.eqz (global.get $left))
      (then (call $return_result (i32.const 128) (i32.const 15)) (return)))
    (memory.fill (global.get $mask) (i32.const 0)
      (i32.mul (i32.div_u (i32.add (global.get $tokens) (i32.const 31)) (i32.const 32)) (i32.const 4)))
    (loop $each
      (if (call $fits (local.get $token))
        (then (call $allow (local.get $token))))
      (br_if $each (i32.lt_u (local.tee $token (i32.add (local.get $token) (i32.const 1))) (global.get $tokens))))
    (call $sample))

  (func $allow (param $token i32) (local $word i32)
    (local.set $word (i32.add (global.get $mask) (i32.shl (i32.shr_u (local.get $token) (i32.const 5)) (i32.const 2))))
    (i32.store (local.get $word)
      (i32.or (i32.load (local.get $word)) (i32.shl (i32.const 1) (i32.and (local.get $token) (i32.const 31))))))

  ;; {"branches":[{"sample_mask":TICKET,"temperature":null,"splices":[]}]}
  (func $sample (local $end i32)
    (memory.copy (i32.const 256) (i32.const 0) (i32.const 28))
    (local.set $end (call $write (i32.const 284) (call $return_mask (global.get $mask))))
    (memory.copy (local.get $end) (i32.const 64) (i32.const 35))
    (call $return_result (i32.const 256) (i32.sub (i32.add (local.get $end) (i32.const 35)) (i32.const 256))))

  ;; A number in decimal to $at: the end of it.
  (func $write (param $at i32) (param $number i32) (result i32)
    (if (i32.ge_u (local.get $number) (i32.const 10))
      (then (local.set $at (call $write (local.get $at) (i32.div_u (local.get $number) (i32.const 10))))))
    (i32.store8 (local.get $at) (i32.add (i32.const 48) (i32.rem_u (local.get $number) (i32.const 10))))
    (i32.add (local.get $at) (i32.const 1))))
