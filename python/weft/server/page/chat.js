// The chat: its messages, and a turn for each question with its answer.

import { $, checked, make } from './dom.js'
import { runAnswer } from './answer.js'
import { showLegend } from './tokens.js'

let conversation = [] // the messages so far

/** The conversation with the new message, or up to the last question if there is none; null for a completion. */
export function messagesNow() {
  if (checked('mode') !== 'chat') return null
  const written = $('prompt').value
  if (written.trim()) return [...conversation, { role: 'user', content: written }]
  return conversation.slice(0, conversation.at(-1)?.role === 'assistant' ? -1 : undefined)
}

/** Send the new message, or the last question again if there is none, and show the answer below the conversation. */
export async function chat(signal) {
  const messages = messagesNow()
  if (!messages.length) return $('prompt').focus()
  const turn = make('div', { class: 'turn' }, make('div', { class: 'asked' }, messages.at(-1).content))
  if (messages.length === 1) $('turns').replaceChildren()
  else if (!$('prompt').value.trim()) $('turns').lastElementChild.remove() // the last question is sent again
  $('turns').append(turn)
  let answer = null
  try {
    await runAnswer(turn, messages, signal, soFar => { answer = soFar })
  } finally {
    if (answer) keepTurn(messages, answer)
  }
}

function keepTurn(messages, answer) {
  conversation = [...messages, { role: 'assistant', content: answer.text }]
  $('prompt').value = ''
  $('anew').hidden = false
}

const intro = $('turns').firstElementChild

/** Begin a new chat: forget the conversation, and clear the answer. */
export function newChat() {
  conversation = []
  $('turns').replaceChildren(intro)
  $('stats').hidden = $('anew').hidden = true
  showLegend({}, 0)
}
