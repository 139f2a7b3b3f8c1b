/** What sessions did and what they waited for, second by second: its answer, its window, and its words. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { safeText } from './describe';
import { formatBytes, Units } from './format';

/** What one session did for a while; times in seconds since 1970. */
export interface ISegment {
  begin: number;
  end: number;
  /** Seconds of each activity, such as `running`. */
  seconds: Readonly<Record<string, number>>;
  /** Memory that it waited for; null where it waited for none, or nobody knows. */
  neededBytes: number | null;
}

export interface IRow {
  session: string;
  user: string;
  /** Path of its notebook; null where it is not this user's to know. */
  notebook: string | null;
  segments: ISegment[];
}

/** Of one device. */
export interface ITimeline {
  /** Null where there is only one. */
  device: string | null;
  begin: number;
  end: number;
  rows: IRow[];
  /** Sessions left out. */
  moreRows: number;
}

/** What is shown: so many seconds until a time, in seconds since 1970; null: until now. */
export interface IWindow {
  seconds: number;
  end: number | null;
}

/** Who can be asked for timelines. */
export interface ITimelineApi {
  timeline(window: IWindow, columns: number): Promise<unknown>;
}

/** As in Python's `status/timeline.py`. */
const SHORTEST = 1;
const LONGEST = 3600;

/** What a bar shows, in the order in which parts of one are stacked. */
export type Kind = 'running' | 'moving' | 'memory' | 'turn' | 'offloaded';

export const KINDS: readonly Kind[] = ['running', 'moving', 'memory', 'turn', 'offloaded'];

const KIND_OF: Readonly<Record<string, Kind>> = {
  running: 'running',
  queued: 'turn',
  waiting: 'memory',
  awaiting_restore: 'memory',
  offloading: 'moving',
  restoring: 'moving',
  offloaded: 'offloaded'
};

/** Return for how many seconds something was done, by kind. */
export function secondsByKind(segments: readonly ISegment[]): Record<Kind, number> {
  const sums: Record<Kind, number> = { running: 0, moving: 0, memory: 0, turn: 0, offloaded: 0 };
  for (const segment of segments) {
    for (const [activity, seconds] of Object.entries(segment.seconds)) {
      const kind = KIND_OF[activity];
      if (kind !== undefined) {
        sums[kind] += seconds;
      }
    }
  }
  return sums;
}

/**
 * Return segments as they are drawn: of those shorter than `least` seconds, columns of that length with all their parts.
 *
 * Turns of a few milliseconds would be a barcode; a column says which part of it was run and which part waited.
 */
export function asDrawn(segments: readonly ISegment[], begin: number, least: number): ISegment[] {
  const columns = new Map<number, Record<string, number>>();
  const long: ISegment[] = [];
  for (const segment of segments) {
    const length = segment.end - segment.begin;
    if (length >= least || length <= 0) {
      long.push(segment);
      continue;
    }
    const first = Math.floor((segment.begin - begin) / least);
    for (const place of [first, first + 1]) {
      const from = Math.max(segment.begin, begin + place * least);
      const to = Math.min(segment.end, begin + (place + 1) * least);
      if (to > from) {
        const sums = columns.get(place) ?? {};
        for (const [activity, seconds] of Object.entries(segment.seconds)) {
          sums[activity] = (sums[activity] ?? 0) + (seconds * (to - from)) / length;
        }
        columns.set(place, sums);
      }
    }
  }
  const short = [...columns].map(([place, seconds]) => ({
    begin: begin + place * least,
    end: begin + (place + 1) * least,
    seconds,
    neededBytes: null
  }));
  return [...short, ...long]; // the long ones are drawn over the edges of columns
}

/** Return the kinds of which there is anything to see, in their order. */
export function kindsIn(timelines: readonly ITimeline[]): Kind[] {
  const sums = secondsByKind(timelines.flatMap(timeline => timeline.rows.flatMap(row => row.segments)));
  return KINDS.filter(kind => sums[kind] > 0);
}

/** Return the query of a URL that asks for a window. */
export function timelineQuery(window: IWindow, columns: number): string {
  const end = window.end === null ? '' : `&end=${window.end.toFixed(3)}`;
  return `seconds=${window.seconds.toFixed(3)}&columns=${columns}${end}`;
}

/** Return the timelines in an answer of the gateway; what cannot be read is left out. */
export function readTimelines(answer: unknown): ITimeline[] {
  return list(object(answer).devices).map(device => {
    const begin = number(device.begin);
    return {
      device: text(device.device),
      begin,
      end: number(device.end),
      moreRows: number(device.more_rows),
      rows: list(device.rows).map(row => ({
        session: text(row.session) ?? '',
        user: text(row.user) ?? '',
        notebook: text(row.notebook),
        segments: (Array.isArray(row.segments) ? row.segments : []).filter(Array.isArray).map(segment => ({
          begin: begin + number(segment[0]),
          end: begin + number(segment[1]),
          seconds: amounts(segment[2]),
          neededBytes: typeof segment[3] === 'number' ? segment[3] : null
        }))
      }))
    };
  });
}

/** Return the part of what is shown that lies between two places, 0 to 1. */
export function select(shown: ITimeline, from: number, to: number): IWindow {
  const length = shown.end - shown.begin;
  const [first, last] = from < to ? [from, to] : [to, from];
  const seconds = clamp((last - first) * length);
  // A selection that is too short becomes longer on both sides.
  const middle = shown.begin + ((first + last) / 2) * length;
  return { seconds, end: middle + seconds / 2 };
}

/** Return a window of another length around the same middle; one that ends now goes on to do so. */
export function zoom(window: IWindow, factor: number, now: number): IWindow {
  const seconds = clamp(window.seconds * factor);
  return window.end === null
    ? { seconds, end: null }
    : untilNow({ seconds, end: window.end + (seconds - window.seconds) / 2 }, now);
}

/** Return a window earlier or later by a part of its length. */
export function move(window: IWindow, part: number, now: number): IWindow {
  const end = (window.end ?? now) + part * window.seconds;
  return untilNow({ seconds: window.seconds, end: Math.max(end, now - LONGEST + window.seconds) }, now);
}

function untilNow(window: IWindow, now: number): IWindow {
  return window.end !== null && window.end >= now ? { seconds: window.seconds, end: null } : window;
}

function clamp(seconds: number): number {
  return Math.min(LONGEST, Math.max(SHORTEST, seconds));
}

/** Return the times of an axis in a window: some five of them, at full seconds or minutes. */
export function ticks(begin: number, end: number, most: number): number[] {
  const steps = [0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800];
  const step = steps.find(one => (end - begin) / one <= most) ?? 3600;
  const times: number[] = [];
  for (let place = Math.ceil(begin / step); place * step <= end; place += 1) {
    times.push(place * step);
  }
  return times;
}

/** Return a time of day, with as many digits as a window of so many seconds needs. */
export function clock(time: number, seconds: number): string {
  const words = new Date(time * 1000).toTimeString().slice(0, seconds > 600 ? 5 : 8);
  return seconds > 5 ? words : `${words}.${Math.floor((time % 1) * 10 + 1e-6)}`;
}

/** Return a duration in words, such as `0.4 s`, `12 s`, `2 min 5 s`. */
export function duration(seconds: number, trans: TranslationBundle): string {
  if (seconds < 9.95) {
    return trans.__('%1 s', seconds < 0.95 ? seconds.toFixed(2) : seconds.toFixed(1));
  }
  const whole = Math.round(seconds);
  if (whole < 60) {
    return trans.__('%1 s', whole);
  }
  return whole % 60 === 0
    ? trans.__('%1 min', whole / 60)
    : trans.__('%1 min %2 s', Math.floor(whole / 60), whole % 60);
}

/** Return whose row it is: its user, and its notebook where that may be known. */
export function rowName(row: IRow, own: string | null, trans: TranslationBundle): string {
  const user = row.user === own ? trans.__('you') : safeText(row.user);
  const file = row.notebook?.replace(/\\/g, '/').split('/').pop();
  return file ? trans.__('%1 (%2)', user, safeText(file)) : user;
}

/** Return what a row did, one sentence for each kind of activity, and why it waited. */
export function rowWords(
  row: IRow,
  segments: readonly ISegment[],
  rows: readonly IRow[],
  own: string | null,
  units: Units,
  trans: TranslationBundle
): string[] {
  const sums = secondsByKind(segments);
  const words: string[] = [];
  const say = (kind: Kind, text: (time: string) => string) => {
    if (sums[kind] >= 0.005) {
      words.push(text(duration(sums[kind], trans)));
    }
  };
  say('running', time => trans.__('Ran for %1', time));
  say('turn', time => {
    const who = ranMeanwhile(row, segments, rows, own, trans);
    return who === null
      ? trans.__('Waited %1 for its turn', time)
      : trans.__('Waited %1 for its turn, while %2 ran', time, who);
  });
  say('memory', time => {
    const needed = Math.max(0, ...segments.map(segment => segment.neededBytes ?? 0));
    return needed === 0
      ? trans.__('Waited %1 for memory', time)
      : trans.__('Waited %1 for %2 of memory', time, formatBytes(needed, units));
  });
  say('moving', time => trans.__('Moved its memory for %1', time));
  say('offloaded', time => trans.__('Was offloaded for %1', time));
  return words.length === 0 ? [trans.__('Did nothing on the device')] : words;
}

/** Return who ran most while a row waited, at most two; null: nobody. */
function ranMeanwhile(
  row: IRow,
  segments: readonly ISegment[],
  rows: readonly IRow[],
  own: string | null,
  trans: TranslationBundle
): string | null {
  const waits = segments.filter(segment => (segment.seconds.queued ?? 0) > 0);
  const ran = rows
    .filter(other => other.session !== row.session)
    .map(other => ({ name: rowName(other, own, trans), seconds: overlap(waits, other.segments) }))
    .filter(other => other.seconds > 0.005)
    .sort((one, other) => other.seconds - one.seconds)
    .slice(0, 2)
    .map(other => other.name);
  return ran.length === 0 ? null : ran.join(trans.__(' and '));
}

/** Return for how long the second list ran within the first one's segments; both are in order. */
function overlap(waits: readonly ISegment[], others: readonly ISegment[]): number {
  let sum = 0;
  let at = 0;
  for (const wait of waits) {
    while (at > 0 && (others[at - 1]?.end ?? 0) > wait.begin) {
      at -= 1;
    }
    for (; at < others.length; at += 1) {
      const other = others[at];
      if (other === undefined || other.begin >= wait.end) {
        break;
      }
      const common = Math.min(wait.end, other.end) - Math.max(wait.begin, other.begin);
      if (common > 0) {
        sum += ((other.seconds.running ?? 0) * common) / (other.end - other.begin);
      }
    }
  }
  return sum;
}

function object(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

function list(value: unknown): Array<Record<string, unknown>> {
  return Array.isArray(value) ? value.map(object) : [];
}

function number(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) ? value : 0;
}

function text(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}

function amounts(value: unknown): Record<string, number> {
  return Object.fromEntries(Object.entries(object(value)).map(([name, amount]) => [name, number(amount)]));
}
