// The chat: its messages, its elements, and what the user can do with a message.

import { $, checked, copyText, make } from './dom.js'
import { runAnswer } from './answer.js'
import { forgetChat, keepChat, keptChats, titleOf } from './chats.js'
import { Prose } from './markdown.js'
import { callCard, connectTools, setTools } from './tools.js'
import { showLegend } from './tokens.js'
import { load, store } from './storage.js'
import { busy, stop } from './work.js'

/** A message is OpenAI's, and may hold `reasoning`, and a `note` on how an answer ended. Neither is sent. */
let current = emptyChat()
const tokenBoxes = new WeakMap() // maps an answer's message to the element of its tokens; gone after a reload
const intro = $('turns').firstElementChild
const chatIntro = make('p', { class: 'muted' }, 'Write a message, or begin with an example. A guide gives the answers their form. ',
  make('b', {}, 'Tokens'), ' shows where each token of an answer comes from.')

const isChat = () => checked('mode') === 'chat'

function emptyChat() {
  return { id: crypto.randomUUID?.() ?? String(Date.now() + Math.random()), system: '', tools: '', choice: 'auto', draft: '', messages: [] }
}

// -- the request

const sent = ({ reasoning, note, ...message }) => message
const withSystem = messages => [...$('system').value.trim() ? [{ role: 'system', content: $('system').value }] : [], ...messages.map(sent)]

/** The messages for a request, with the text that is not sent yet; without any, up to the last question. None if there is
 *  no question. null for a completion. */
export function messagesNow() {
  if (!isChat()) return null
  const text = $('prompt').value, { messages } = current
  if (text.trim()) return withSystem([...messages, { role: 'user', content: text }])
  const question = messages.findLastIndex(({ role }) => role === 'user' || role === 'tool')
  return question < 0 ? [] : withSystem(messages.slice(0, question + 1))
}

/** Send the text in the message field. If it is empty, answer the last message that has no answer yet. */
export async function chat(signal) {
  const text = $('prompt').value
  if (text.trim()) current.messages.push({ role: 'user', content: text })
  else if ([undefined, 'assistant'].includes(current.messages.at(-1)?.role)) return $('prompt').focus()
  $('prompt').value = ''
  await answer(signal)
}

/** Answer the last message. The part that arrives before an error or a stop stays. */
async function answer(signal) {
  const conversation = current // the user may open another chat, which stops this answer
  show()
  keep()
  scrollDown()
  const prose = new Prose(), turn = make('div', { class: 'turn assistant', 'aria-label': 'Answer' }, prose.element)
  const thought = make('div', { class: 'prose' }), thoughts = make('details', { class: 'thoughts', open: true, hidden: true }, make('summary', {}, 'Thinking …'), thought)
  turn.prepend(thoughts)
  $('turns').append(turn)
  let soFar = null, isDrawn = true
  const draw = () => {
    isDrawn = true
    if (conversation !== current) return
    const follows = isAtEnd()
    thoughts.hidden = !soFar.reasoning
    thought.textContent = soFar.reasoning
    prose.show(soFar.text)
    if (follows) scrollDown()
  }
  try {
    await runAnswer(turn, withSystem(current.messages), signal, answer => {
      soFar = answer
      if (isDrawn) requestAnimationFrame(draw) // several pieces may come within a frame
      isDrawn = false
    })
  } finally {
    if (soFar) addAnswer(conversation, soFar, turn.querySelector('.tokens'), signal)
    if (conversation === current) {
      const follows = isAtEnd()
      show()
      keep()
      if (follows) scrollDown()
    } else if (!conversation.isDeleted) keepChat(conversation)
  }
}

const NOTES = { length: 'Cut at Max tokens.', error: 'The answer failed.', null: 'An error ended the answer.' } // by finish reason

function addAnswer({ messages }, { text, reasoning, calls, reason }, box, { aborted }) {
  const message = { role: 'assistant', content: text }
  if (reasoning) message.reasoning = reasoning
  const note = aborted ? 'Stopped.' : NOTES[reason] ?? (text || calls.length ? '' : 'The answer is empty.')
  if (note) message.note = note
  if (calls.length && !note) message.tool_calls = calls // a cut call cannot be answered
  messages.push(message)
  tokenBoxes.set(message, box)
}

// -- the elements

const FOLLOW_PX = 60 // the user follows the answer if the end of the chat is this near

const isAtEnd = () => $('turns').scrollHeight - $('turns').scrollTop - $('turns').clientHeight < FOLLOW_PX
const scrollDown = () => { $('turns').scrollTop = $('turns').scrollHeight }

/** Show the whole chat. */
function show() {
  const { messages } = current
  const top = $('turns').scrollTop
  $('turns').replaceChildren(...messages.length ? messages.map(turnOf) : [isChat() ? chatIntro : intro])
  $('turns').scrollTop = top
  $('new-chat').hidden = $('delete-chat').hidden = !messages.length
  showChats()
}

function turnOf(message, place) {
  return { user: userTurn, assistant: assistantTurn, tool: toolTurn }[message.role](message, place)
}

const action = (label, act) => make('button', { type: 'button', class: 'quiet', onclick: event => act(event.target) }, label)

function userTurn(message, place) {
  const turn = make('div', { class: 'turn user' }, make('div', { class: 'message', dir: 'auto' }, message.content))
  const actions = [action('Copy', button => copyText(message.content, button)), action('Edit', () => edit(turn, message, place))]
  if (place === current.messages.length - 1) actions.push(action('Try again', () => rerun(place + 1)))
  turn.append(make('div', { class: 'row acts' }, ...actions))
  return turn
}

function edit(turn, message, place) {
  const field = make('textarea', { 'aria-label': 'The message', dir: 'auto', rows: Math.min(message.content.split('\n').length + 1, 12) })
  field.value = message.content
  const send = () => {
    if (!field.value.trim()) return
    rerun(place, { ...message, content: field.value })
  }
  field.addEventListener('keydown', event => {
    if (event.key === 'Escape') show()
    if (!sends(event)) return
    event.preventDefault()
    send()
  })
  turn.replaceChildren(field, make('div', { class: 'row acts' }, action('Cancel', show), action('Send', send)))
  field.focus()
}

function assistantTurn(message, place) {
  const { content, reasoning, tool_calls: calls = [], note } = message
  const turn = make('div', { class: 'turn assistant' }), prose = new Prose(), box = tokenBoxes.get(message)
  prose.show(content)
  if (reasoning) turn.append(make('details', { class: 'thoughts' }, make('summary', {}, 'Thoughts'), make('div', { class: 'prose' }, reasoning)))
  turn.append(prose.element)
  if (box) turn.append(box)
  else turn.classList.add('textual') // the tokens are gone: the text shows in both views
  const later = current.messages.slice(place + 1), isPast = later.some(({ role }) => role !== 'tool')
  const waits = ({ id }) => !isPast && !later.some(result => result.tool_call_id === id)
  turn.append(...calls.map(call => callCard(call, waits(call) ? result => giveResult(call, result) : null)))
  if (note) turn.append(make('p', { class: 'hint' }, note))
  const actions = [action('Copy', button => copyText(content, button))]
  if (place === current.messages.length - 1) actions.push(action('Again', () => rerun(place)))
  turn.append(make('div', { class: 'row acts' }, ...actions))
  return turn
}

const toolTurn = message => make('div', { class: 'turn tool' }, make('p', { class: 'hint' }, 'Result of the tool'), make('pre', { dir: 'auto' }, message.content))

/** Add a tool's result. The model goes on once all calls of its message have one. */
function giveResult({ id }, content) {
  current.messages.push({ role: 'tool', tool_call_id: id, content })
  const calls = current.messages.findLast(({ tool_calls: calls }) => calls).tool_calls
  const results = current.messages.filter(({ role }) => role === 'tool').map(message => message.tool_call_id)
  if (calls.every(call => results.includes(call.id))) busy(answer)
  else { show(); keep() }
}

/** Replace the messages from `place` on by others, or by none, and answer the last message. */
function rerun(place, ...messages) {
  busy(signal => {
    current.messages.splice(place, Infinity, ...messages)
    return answer(signal)
  })
}

// -- several chats

/** Keep the chat for a reload, once it has a message. */
function keep() {
  Object.assign(current, { system: $('system').value, tools: $('tools').value, choice: $('tool-choice').value, draft: $('prompt').value })
  if (!current.messages.length) return
  $('unkept').hidden = keepChat(current)
  remember()
}

/** Note which chat this tab shows, for a reload. */
const remember = () => store('sessionStorage', 'weft-chat', isChat() ? current.id : null)

function showChats() {
  const chats = keptChats()
  $('chats').hidden = !chats.some(({ id }) => id !== current.id)
  const options = chats.map(chat => make('option', { value: chat.id, selected: chat.id === current.id }, titleOf(chat)))
  if (!chats.some(({ id }) => id === current.id)) options.unshift(make('option', { value: '', selected: true }, 'This chat'))
  $('chats').replaceChildren(...options)
}

/** Show another chat. An answer that still arrives stops, and its chat keeps the part. */
function open(chat) {
  stop()
  current = chat
  $('system').value = chat.system
  $('prompt').value = chat.draft
  setTools(chat.tools, chat.choice)
  $('system-box').open = Boolean(chat.system)
  $('tools-box').open = Boolean(chat.tools)
  $('stats').hidden = $('failed').hidden = $('timeline-card').hidden = true
  showLegend({}, 0)
  show()
  scrollDown()
  remember()
}

/** Begin a new chat with the same system message, tools and unsent text. */
export function newChat() {
  open({ ...emptyChat(), system: $('system').value, tools: $('tools').value, choice: $('tool-choice').value, draft: $('prompt').value })
}

/** Show the controls of a chat or of a completion, and begin anew. In a chat the message field is below the messages. */
export function chooseMode() {
  const is = isChat()
  $('answer-title').textContent = is ? 'Chat' : 'Answer'
  document.body.dataset.mode = is ? 'chat' : 'completion'
  $('chat-settings').hidden = $('views').hidden = !is
  ;(is ? $('composer') : $('prompt-place')).append($('prompt'), $('actions'))
  $('run').textContent = is ? 'Send' : 'Run'
  $('prompt').placeholder = is ? 'Message. Enter sends, Shift+Enter adds a line.' : ''
  newChat()
  if (!is) $('delete-chat').hidden = $('chats').hidden = true
}

/** After a reload, open the chat that this tab showed. Returns whether there is one. */
export function resumeChat() {
  const id = load('sessionStorage', 'weft-chat'), chat = keptChats().find(chat => chat.id === id)
  if (!chat) return false
  document.querySelector('input[name=mode][value=chat]').checked = true
  chooseMode()
  open(chat)
  return true
}

/** Whether a key press in a message field sends it. Enter also ends the composition of a character. */
const sends = event => event.key === 'Enter' && !event.shiftKey && !event.isComposing

function showView(view) {
  const follows = isAtEnd()
  $('turns').dataset.view = view
  if (follows) scrollDown()
}

/** Connect the chat's controls. `run` sends the message. */
export function connectChat(run) {
  $('new-chat').addEventListener('click', () => { newChat(); $('prompt').focus() })
  $('delete-chat').addEventListener('click', () => {
    if (!confirm('Delete this chat?')) return
    current.isDeleted = true
    forgetChat(current.id)
    newChat()
    $('prompt').focus()
  })
  $('chats').addEventListener('change', () => {
    const chat = keptChats().find(({ id }) => id === $('chats').value)
    if (chat) open(chat)
  })
  $('prompt').addEventListener('keydown', event => {
    if (!isChat() || !sends(event) || event.ctrlKey || event.metaKey) return // with Ctrl the page's key applies
    event.preventDefault()
    run()
  })
  $('system').addEventListener('input', keep)
  $('prompt').addEventListener('input', () => { if (isChat()) keep() })
  window.addEventListener('storage', () => { if (isChat()) showChats() }) // another tab changed them
  connectTools(keep)
  const view = load('localStorage', 'weft-view') ?? 'text'
  for (const input of document.querySelectorAll('input[name=view]')) {
    input.checked = input.value === view
    input.addEventListener('change', () => { showView(input.value); store('localStorage', 'weft-view', input.value) })
  }
  showView(view)
}
