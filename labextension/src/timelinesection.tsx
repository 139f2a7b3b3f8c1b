/** The timeline: who ran when, who waited and for what; to zoom into with the mouse, the keyboard or buttons. */

import * as React from 'react';

import { colourStyle } from './colours';
import { safeText } from './describe';
import { reasonOf } from './limits';
import type { INames } from './names';
import { Section } from './section';
import {
  clock,
  duration,
  IRow,
  ITimeline,
  ITimelineApi,
  IWindow,
  Kind,
  kindsIn,
  move,
  readTimelines,
  rowName,
  rowWords,
  secondsByKind,
  select,
  ticks,
  zoom
} from './timeline';
import { Strip } from './timelinestrip';

/** Milliseconds between two looks at what goes on. */
const PERIOD = 2000;
/** How many parts of a window are told apart. */
const COLUMNS = 300;
const PRESETS = [120, 600, 3600] as const;
const DEFAULT = 600;
/** A selection shorter than this part of the width is a click. */
const CLICK = 0.01;

interface IProps extends INames {
  api: ITimelineApi;
  colours: ReadonlyMap<string, string>;
  /** Whether it is opened on request only. */
  isFolded?: boolean;
  /** Whether a notice says already that the gateway or its executor is away. */
  isAway?: boolean;
}

export function TimelineSection(props: IProps): React.ReactElement {
  const { trans, isFolded = false } = props;
  return (
    <Section title={trans.__('Timeline')} className="sk-Timeline" isFolded={isFolded}>
      <Timelines {...props} />
    </Section>
  );
}

function Timelines(props: IProps): React.ReactElement {
  const { api, isAway, trans } = props;
  const [window, setWindow] = React.useState<IWindow>({ seconds: DEFAULT, end: null });
  const [asTable, setAsTable] = React.useState(false);
  const place = React.useRef<HTMLDivElement>(null);
  const { timelines, problem, ahead } = useTimelines(api, window, place);
  const now = Date.now() / 1000 + ahead;
  const button = (label: string, text: string, next: IWindow) => (
    <button type="button" className="sk-Button" aria-label={label} title={label} onClick={() => setWindow(next)}>
      {text}
    </button>
  );
  return (
    <div ref={place} className="sk-Timeline-content">
      <div className="sk-Timeline-tools">
        <span role="group" aria-label={trans.__('Last')} className="sk-Timeline-group">
          {PRESETS.map(seconds => (
            <button
              key={seconds}
              type="button"
              className="sk-Button"
              aria-pressed={window.end === null && window.seconds === seconds}
              onClick={() => setWindow({ seconds, end: null })}
            >
              {seconds < 3600 ? trans.__('%1 min', seconds / 60) : trans.__('%1 h', seconds / 3600)}
            </button>
          ))}
        </span>
        <span className="sk-Timeline-group">
          {button(trans.__('Zoom in'), '+', zoom(window, 0.5, now))}
          {button(trans.__('Zoom out'), '−', zoom(window, 2, now))}
          {button(trans.__('Earlier'), '‹', move(window, -0.5, now))}
          {button(trans.__('Later'), '›', move(window, 0.5, now))}
        </span>
        <button type="button" className="sk-Button" aria-pressed={asTable} onClick={() => setAsTable(!asTable)}>
          {trans.__('As a table')}
        </button>
      </div>
      <div role="status">{problem !== null && isAway !== true && <p className="sk-Notice">{safeText(problem)}</p>}</div>
      {timelines.map(timeline => (
        <Device
          key={timeline.device}
          {...props}
          timeline={timeline}
          asTable={asTable}
          window={window}
          setWindow={setWindow}
          now={now}
        />
      ))}
      {!asTable && <Legend kinds={kindsIn(timelines)} trans={trans} />}
    </div>
  );
}

/** Return what the gateway answers, as long as somebody can see it; again and again while the window ends now. */
function useTimelines(
  api: ITimelineApi,
  shown: IWindow,
  place: React.RefObject<HTMLElement | null>
): { timelines: readonly ITimeline[]; problem: string | null; ahead: number } {
  const [timelines, setTimelines] = React.useState<readonly ITimeline[]>([]);
  const [problem, setProblem] = React.useState<string | null>(null);
  /** By how many seconds the gateway's clock is ahead of the browser's. */
  const ahead = React.useRef(0);
  const { seconds, end } = shown;
  React.useEffect(() => {
    let isOver = false;
    let isSeen = true;
    let isAsking = false;
    const look = async () => {
      if (isAsking) {
        return;
      }
      isAsking = true;
      try {
        const answer = readTimelines(await api.timeline({ seconds, end }, COLUMNS));
        if (!isOver) {
          if (end === null && answer[0] !== undefined) {
            ahead.current = answer[0].end - Date.now() / 1000;
          }
          setTimelines(answer);
          setProblem(null);
        }
      } catch (error) {
        if (!isOver) {
          setProblem(reasonOf(error));
        }
      } finally {
        isAsking = false;
      }
    };
    void look();
    const observer = new IntersectionObserver(entries => {
      isSeen = entries.some(entry => entry.isIntersecting);
    });
    if (place.current !== null) {
      observer.observe(place.current);
    }
    const timer = setInterval(() => {
      if (end === null && isSeen && !document.hidden) {
        void look();
      }
    }, PERIOD);
    return () => {
      isOver = true;
      observer.disconnect();
      clearInterval(timer);
    };
  }, [api, seconds, end, place]);
  return { timelines, problem, ahead: ahead.current };
}

interface IDeviceProps extends IProps {
  timeline: ITimeline;
  asTable: boolean;
  window: IWindow;
  setWindow: (window: IWindow) => void;
  /** Seconds since 1970, by the gateway's clock. */
  now: number;
}

function Device(props: IDeviceProps): React.ReactElement {
  const { timeline, asTable, trans } = props;
  const { begin, end, rows, moreRows, device } = timeline;
  const span = trans.__('%1 to %2', clock(begin, 60), clock(end, 60));
  return (
    <div className="sk-Timeline-device">
      {device !== null && <p className="sk-Strong">{safeText(device)}</p>}
      {rows.length === 0 ? (
        <p className="sk-Faint">{trans.__('Nobody used the device from %1.', span)}</p>
      ) : asTable ? (
        <Table {...props} />
      ) : (
        <Plot {...props} />
      )}
      {moreRows > 0 && <p className="sk-Hint">{trans.__('%1 more sessions did less.', moreRows)}</p>}
    </div>
  );
}

/** Where the pointer is. */
interface IPointer {
  /** Place in the window, 0 to 1. */
  at: number;
  /** Pixels within the plot. */
  x: number;
  y: number;
  row: IRow | null;
  /** Where a selection began; null: there is none. */
  from: number | null;
}

function Plot(props: IDeviceProps): React.ReactElement {
  const { timeline, window, setWindow, now, colours, own, units, trans } = props;
  const { begin, end, rows } = timeline;
  const plot = React.useRef<HTMLDivElement>(null);
  const axis = React.useRef<HTMLDivElement>(null);
  const [pointer, setPointer] = React.useState<IPointer | null>(null);
  const locate = (event: React.PointerEvent, from: number | null): IPointer => {
    const area = axis.current?.getBoundingClientRect() ?? new DOMRect();
    const whole = plot.current?.getBoundingClientRect() ?? new DOMRect();
    const at = Math.min(1, Math.max(0, (event.clientX - area.left) / (area.width || 1)));
    const element = (event.target as Element).closest?.('[data-session]');
    const session = element instanceof HTMLElement ? element.dataset.session : undefined;
    const row = rows.find(one => one.session === session) ?? null;
    return { at, x: event.clientX - whole.left, y: event.clientY - whole.top, row, from };
  };
  const onKeyDown = (event: React.KeyboardEvent) => {
    const next = {
      ArrowLeft: () => move(window, -0.25, now),
      ArrowRight: () => move(window, 0.25, now),
      '+': () => zoom(window, 0.5, now),
      '-': () => zoom(window, 2, now),
      Home: () => ({ seconds: DEFAULT, end: null })
    }[event.key];
    if (next !== undefined) {
      event.preventDefault();
      setWindow(next());
    }
  };
  const left = (time: number) => ({ left: `${(100 * (time - begin)) / (end - begin)}%` });
  return (
    <div
      ref={plot}
      className="sk-Plot"
      tabIndex={0}
      role="group"
      aria-label={trans.__('Timeline; arrow keys move it, + and - zoom, Home shows the last minutes')}
      onKeyDown={onKeyDown}
      onPointerMove={event => setPointer(locate(event, pointer?.from ?? null))}
      onPointerLeave={() => setPointer(null)}
      onPointerDown={event => {
        if (event.button === 0) {
          setPointer(locate(event, locate(event, null).at));
        }
      }}
      onPointerUp={event => {
        const found = locate(event, pointer?.from ?? null);
        if (found.from !== null && Math.abs(found.at - found.from) > CLICK) {
          setWindow(select(timeline, found.from, found.at));
        }
        setPointer({ ...found, from: null });
      }}
      onDoubleClick={() => setWindow(zoom(window, 4, now))}
    >
      {rows.map(row => (
        <div key={row.session} className="sk-Plot-row" data-session={row.session}>
          <span className={row.user === own ? 'sk-Plot-name sk-mod-own' : 'sk-Plot-name'}>
            {rowName(row, own, trans)}
          </span>
          <Strip
            row={row}
            begin={begin}
            end={end}
            colour={colours.get(row.user) ?? '#7a828c'}
            label={[rowName(row, own, trans), ...rowWords(row, row.segments, rows, own, units, trans)].join('. ')}
          />
        </div>
      ))}
      <div className="sk-Plot-row" aria-hidden="true">
        <span className="sk-Plot-name" />
        <div ref={axis} className="sk-Plot-axis">
          {ticks(begin, end, 6).map(time => (
            <span key={time} style={left(time)}>
              {clock(time, end - begin)}
            </span>
          ))}
          {pointer !== null && <i className="sk-Plot-line" style={{ left: `${100 * pointer.at}%` }} />}
          {pointer !== null && pointer.from !== null && (
            <i
              className="sk-Plot-selection"
              style={{
                left: `${100 * Math.min(pointer.at, pointer.from)}%`,
                width: `${100 * Math.abs(pointer.at - pointer.from)}%`
              }}
            />
          )}
        </div>
      </div>
      {pointer !== null && pointer.row !== null && pointer.from === null && (
        <Tip {...props} row={pointer.row} pointer={pointer} width={plot.current?.clientWidth ?? 0} />
      )}
    </div>
  );
}

/** What is under the pointer: who, when, what, and why they waited. */
function Tip(props: IDeviceProps & { row: IRow; pointer: IPointer; width: number }): React.ReactElement {
  const { timeline, row, pointer, width, own, units, trans } = props;
  const length = timeline.end - timeline.begin;
  const time = timeline.begin + pointer.at * length;
  const near = (2 * length) / Math.max(1, width);
  const segment = row.segments.find(one => one.begin - near <= time && time < one.end + near);
  const isRight = pointer.x > width / 2;
  return (
    <div
      className="sk-Tip"
      aria-hidden="true"
      style={{ top: pointer.y + 14, ...(isRight ? { right: width - pointer.x + 8 } : { left: pointer.x + 8 }) }}
    >
      <p className="sk-Strong">{rowName(row, own, trans)}</p>
      {segment === undefined ? (
        <p>{trans.__('%1: nothing on the device', clock(time, length))}</p>
      ) : (
        <>
          <p className="sk-Faint">{trans.__('%1 to %2', clock(segment.begin, length), clock(segment.end, length))}</p>
          {rowWords(row, [segment], timeline.rows, own, units, trans).map(words => (
            <p key={words}>{words}</p>
          ))}
        </>
      )}
    </div>
  );
}

/** The same in numbers. */
function Table(props: IDeviceProps): React.ReactElement {
  const { timeline, colours, own, units, trans } = props;
  const { begin, end, rows } = timeline;
  const cell = (seconds: number) => (seconds < 0.005 ? '' : duration(seconds, trans));
  return (
    <div className="sk-Timeline-scroll" tabIndex={0} role="group" aria-label={trans.__('Timeline as a table')}>
      <table className="sk-Timeline-table">
        <caption>{trans.__('From %1 to %2', clock(begin, 60), clock(end, 60))}</caption>
        <thead>
          <tr>
            <th scope="col">{trans.__('Who')}</th>
            <th scope="col">{trans.__('Ran')}</th>
            <th scope="col">{trans.__('Waited for its turn')}</th>
            <th scope="col">{trans.__('Waited for memory')}</th>
            <th scope="col">{trans.__('Offloaded')}</th>
            <th scope="col">{trans.__('Longest wait')}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(row => {
            const sums = secondsByKind(row.segments);
            const longest = longestWait(row);
            return (
              <tr key={row.session}>
                <th scope="row">
                  <span className="sk-Swatch" style={colourStyle(colours.get(row.user))} aria-hidden="true" />{' '}
                  {rowName(row, own, trans)}
                </th>
                <td>{cell(sums.running)}</td>
                <td>{cell(sums.turn)}</td>
                <td>{cell(sums.memory)}</td>
                <td>{cell(sums.offloaded)}</td>
                <td>
                  {longest !== null &&
                    trans.__(
                      '%1: %2',
                      clock(longest.begin, 60),
                      rowWords(row, [longest], rows, own, units, trans).join('. ')
                    )}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function longestWait(row: IRow): IRow['segments'][number] | null {
  const wait = (segment: IRow['segments'][number]) => {
    const sums = secondsByKind([segment]);
    return sums.turn + sums.memory;
  };
  const longest = [...row.segments].sort((one, other) => wait(other) - wait(one))[0];
  return longest === undefined || wait(longest) < 0.005 ? null : longest;
}

/** Only what there is to see. */
function Legend(props: Pick<INames, 'trans'> & { kinds: readonly Kind[] }): React.ReactElement {
  const { kinds, trans } = props;
  const names: Record<Kind, string> = {
    running: trans.__('ran, in its user’s colour'),
    turn: trans.__('waited for its turn'),
    memory: trans.__('waited for memory'),
    moving: trans.__('moved its memory'),
    offloaded: trans.__('offloaded')
  };
  return (
    <p className="sk-Kinds" aria-hidden="true">
      {kinds.map(kind => (
        <span key={kind} className="sk-Kind">
          <span className={`sk-Key sk-mod-${kind}`} />
          {names[kind]}
        </span>
      ))}
    </p>
  );
}
