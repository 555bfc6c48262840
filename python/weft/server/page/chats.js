// The chats that survive a reload: in the browser's local storage, newest first, bounded in number and size.

import { load, store } from './storage.js'

const KEY = 'weft-chats', VERSION = 1
const MAX_CHATS = 30, MAX_CHARACTERS = 1_000_000

/** The kept chats. Content that this page did not write, or that an older version wrote, counts as none. */
export function keptChats() {
  try {
    const stored = JSON.parse(load('localStorage', KEY))
    return stored?.version === VERSION && Array.isArray(stored.chats) ? stored.chats.filter(isChat) : []
  } catch {
    return []
  }
}

const isText = value => typeof value === 'string'
const isCall = call => isText(call?.function?.name) && isText(call.function.arguments)
const isMessage = message => ['user', 'assistant', 'tool'].includes(message?.role) && isText(message.content ?? '')
  && (message.tool_calls === undefined || (Array.isArray(message.tool_calls) && message.tool_calls.every(isCall)))
const isChat = chat => isText(chat?.id) && isText(chat.system) && isText(chat.tools) && isText(chat.draft)
  && Array.isArray(chat.messages) && chat.messages.every(isMessage)

/** Keep a chat, in place of its former state. Drops the oldest chats if there are too many or the storage is full.
 *  Returns whether it was kept. Other tabs' chats stay, because the list is read again each time. */
export function keepChat(chat) {
  return write([chat, ...keptChats().filter(({ id }) => id !== chat.id)])
}

export function forgetChat(id) {
  write(keptChats().filter(chat => chat.id !== id))
}

/** Write the first chats of a list, as many as there is room for. Writes nothing if not even the first has room. */
function write(chats) {
  for (let count = Math.min(chats.length, MAX_CHATS); count || !chats.length; count--) {
    const text = JSON.stringify({ version: VERSION, chats: chats.slice(0, count) })
    if (text.length <= MAX_CHARACTERS && store('localStorage', KEY, text)) return true
    if (!count) return false
  }
  return false
}

const MAX_TITLE = 40 // characters

/** A line that names a chat: the beginning of its first message. */
export function titleOf(chat) {
  const text = chat.messages.find(({ role }) => role === 'user')?.content.trim().replace(/\s+/g, ' ') || 'Empty chat'
  return text.length > MAX_TITLE ? `${text.slice(0, MAX_TITLE - 1).trimEnd()}…` : text
}
