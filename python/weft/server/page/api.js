// Requests to the server: the API key, errors, streams.

import { $ } from './dom.js'
import { load, store } from './storage.js'

export class ApiError extends Error {
  constructor(status, content) {
    super(content?.message ?? `the server answered ${status}`)
    Object.assign(this, { status, code: content?.code ?? null })
  }
}

/** Await a response or a part of it. If the connection fails, the error is an `ApiError` with this message. */
async function connected(promise, message) {
  try {
    return await promise
  } catch (error) {
    throw error.name === 'AbortError' ? error : new ApiError(0, { message })
  }
}

let key = load('sessionStorage', 'weft-key')
let asking = null // the open key dialog, which all requests without a valid key share

/** Ask for a key. `isRefused`: the server refused the last one. Resolves to whether the user gave one. */
function askKey(isRefused) {
  asking ??= new Promise(resolve => {
    $('key-refused').hidden = !isRefused
    $('key').setAttribute('aria-invalid', isRefused)
    $('key-dialog').returnValue = ''
    $('key-dialog').showModal()
    $('key').select()
    $('key-dialog').addEventListener('close', () => {
      asking = null
      const given = $('key-dialog').returnValue === 'use' && $('key').value.trim()
      if (given) store('sessionStorage', 'weft-key', key = given)
      resolve(Boolean(given))
    }, { once: true })
  })
  return asking
}

/** Fetch with the API key. If the server refuses the key, ask for another and try again. Paths are relative, because a
 *  proxy may serve the page below a folder. */
export async function api(path, body, signal) {
  const sentKey = key
  const headers = { ...(key && { authorization: `Bearer ${key}` }), ...(body && { 'content-type': 'application/json' }) }
  const options = { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal }
  const response = await connected(fetch(path, options), 'The server cannot be reached. Check that it runs, then try again.')
  if (response.ok) return response
  const content = (await response.json().catch(() => null))?.error
  if (response.status === 401) {
    // The user may have given a new key to another request meanwhile.
    if (sentKey !== key || await askKey(sentKey !== null)) return api(path, body, signal)
  }
  throw new ApiError(response.status, content)
}

/** Yield the data of server-sent events, parsed from JSON, as they arrive. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  for (;;) {
    const { value, done } = await connected(reader.read(), 'The connection broke before the answer ended. Check that the server runs, then try again.')
    if (done) return
    const parts = (rest + value).split('\n\n')
    rest = parts.pop()
    for (const part of parts) if (part !== 'data: [DONE]') yield JSON.parse(part.slice('data: '.length))
  }
}

/** Add a piece of a tool call: the first one has its id and name, and all have a part of its arguments. */
function extend(calls, { index, id, function: { name, arguments: text } }) {
  calls[index] ??= { id, type: 'function', function: { name, arguments: '' } }
  calls[index].function.arguments += text ?? ''
}

/** Send a request, and pass new tokens to `onTokens`. Returns the answer: text, reasoning,
 *  tool calls, tokens, finish reason, usage and statistics. */
export async function generate({ path, body }, signal, onTokens) {
  const answer = { text: '', reasoning: '', calls: [], tokens: [], reason: null, weft: null, usage: null, began: performance.now(), first: 0, last: 0 }
  for await (const event of events(await api(path, body, signal))) {
    signal.throwIfAborted() // events that arrived together: the abort ends the stream only after them
    if (event.error) throw new ApiError(500, event.error)
    if (event.weft) answer.weft = event.weft
    if (event.usage) answer.usage = event.usage
    for (const choice of event.choices) {
      const tokens = choice.token_details ?? choice.logprobs?.content ?? []
      answer.text += choice.text ?? choice.delta?.content ?? ''
      answer.reasoning += choice.delta?.reasoning_content ?? ''
      for (const call of choice.delta?.tool_calls ?? []) extend(answer.calls, call)
      answer.reason = choice.finish_reason ?? answer.reason
      if (!tokens.length) continue
      answer.last = performance.now()
      answer.first ||= answer.last
      const isThought = choice.delta?.reasoning_content !== undefined && choice.delta.content === undefined
      tokens.forEach(token => { token.is_thought = isThought })
      answer.tokens.push(...tokens)
      onTokens(tokens, answer)
    }
  }
  return answer
}
