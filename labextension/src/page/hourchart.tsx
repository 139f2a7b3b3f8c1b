/** The last hour of a device as a chart, stacked by user: small in its strip, large with axes and values. */

import * as React from 'react';
import uPlot from 'uplot';

import { safeText } from '../describe';
import { formatBytes, Units } from '../format';
import { PageApi, SignInNeededError } from './api';
import { english as trans } from './english';
import { gapWords, IHistory, ILayer, layersOf, readHistory, withGaps } from './history';

/** Milliseconds between two looks at the history, which changes every ten seconds. */
const PERIOD = 30_000;
const HEIGHT = { small: 56, large: 180 };

/** Return the last hour of each device, read again while somebody can see it; none where the gateway keeps none. */
export function useHistory(api: PageApi, onSignIn: () => void): readonly IHistory[] {
  const [histories, setHistories] = React.useState<readonly IHistory[]>([]);
  React.useEffect(() => {
    const look = async () => {
      try {
        const answer = await api.history();
        setHistories(readHistory(answer, Date.now() / 1000));
      } catch (error) {
        if (error instanceof SignInNeededError) {
          onSignIn();
        }
      }
    };
    void look();
    const timer = setInterval(() => {
      if (!document.hidden) {
        void look();
      }
    }, PERIOD);
    return () => clearInterval(timer);
  }, [api, onSignIn]);
  return histories;
}

interface IProps {
  histories: readonly IHistory[];
  units: Units;
  colours: ReadonlyMap<string, string>;
}

/** The hour of all devices, large; nothing where none is known. */
export function HistorySection(props: IProps): React.ReactElement | null {
  const { histories } = props;
  return histories.length === 0 ? null : (
    <section className="sk-Section sk-History" aria-labelledby="sk-history-title">
      <h2 id="sk-history-title" className="sk-Section-title">
        {trans.__('Last hour')}
      </h2>
      {histories.map(history => {
        const gaps = gapWords(history, trans);
        return (
          <div key={history.device}>
            {histories.length > 1 && <p className="sk-Strong">{safeText(history.device)}</p>}
            <HourChart {...props} history={history} size="large" />
            {gaps !== null && <p className="sk-Hint">{gaps}</p>}
          </div>
        );
      })}
    </section>
  );
}

export function HourChart(
  props: Omit<IProps, 'histories'> & { history: IHistory; size: keyof typeof HEIGHT }
): React.ReactElement {
  const { history, size, units, colours } = props;
  const place = React.useRef<HTMLDivElement>(null);
  const chart = React.useRef<uPlot | null>(null);
  const hour = withGaps(history);
  const layers = layersOf(hour);
  const data = [hour.times, ...layers.map(layer => layer.top), hour.utilisation] as uPlot.AlignedData;
  const highest = Math.max(0, ...history.usedBytes.map(value => value ?? 0));
  const latest = React.useRef({ data, layers, highest });
  latest.current = { data, layers, highest };
  const hasUtilisation = history.utilisation.some(value => value !== null);
  const { capacityBytes } = history;
  const people = layers.map(({ user }) => `${user} ${user === null ? '' : colours.get(user)}`).join('\n');
  React.useEffect(() => {
    const element = place.current;
    if (element === null) {
      return;
    }
    const dark = window.matchMedia('(prefers-color-scheme: dark)');
    const draw = () => {
      chart.current?.destroy();
      const series = seriesOf(() => latest.current.layers, colours, units);
      const top = size === 'small' ? () => 1.1 * latest.current.highest : () => capacityBytes;
      const scales = { bytes: { range: (): [number, number] => [0, top()] } };
      const options = { ...sizeOf(element, size), scales, series };
      chart.current = new uPlot(
        size === 'small'
          ? { ...options, axes: [{ show: false }, { show: false }], legend: { show: false }, cursor: { show: false } }
          : withAxes(options, capacityBytes, hasUtilisation, units),
        latest.current.data,
        element
      );
    };
    draw();
    dark.addEventListener('change', draw);
    const observer = new ResizeObserver(() => {
      chart.current?.setSize(sizeOf(element, size));
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      dark.removeEventListener('change', draw);
      chart.current?.destroy();
      chart.current = null;
    };
    // `people` says whether their names or colours have changed
  }, [capacityBytes, hasUtilisation, people, size, units]);
  React.useEffect(() => chart.current?.setData(latest.current.data), [history]);
  const label = trans.__(
    '%1: at most %2 of %3 in use in the last hour',
    safeText(history.device),
    formatBytes(highest, units),
    formatBytes(capacityBytes, units)
  );
  return <div ref={place} className={`sk-Chart sk-mod-${size}`} role="img" aria-label={label} title={label} />;
}

function sizeOf(element: HTMLElement, size: keyof typeof HEIGHT): { width: number; height: number } {
  return { width: Math.max(1, element.clientWidth), height: HEIGHT[size] };
}

function themed(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function clock(seconds: number): string {
  return new Date(seconds * 1000).toTimeString().slice(0, 5);
}

/** Return the series of layers, with the axis of time before and utilisation, not drawn, behind them. */
function seriesOf(
  layersNow: () => readonly ILayer[],
  colours: ReadonlyMap<string, string>,
  units: Units
): uPlot.Series[] {
  const other = themed('--jp-border-color1');
  return [
    { label: trans.__('Time'), value: (_, value) => (value === null ? '' : clock(value)) },
    ...layersNow().map(({ user }, place): uPlot.Series => {
      const colour = user === null ? other : (colours.get(user) ?? other);
      return {
        label: user === null ? trans.__('others') : safeText(user),
        scale: 'bytes',
        stroke: colour,
        fill: colour,
        width: 0,
        points: { show: false },
        // what is drawn is a sum; what people read is the part
        value: (_, value, __, index) => {
          const bytes = index === null ? null : layersNow()[place]?.bytes[index];
          return value === null || typeof bytes !== 'number' ? '' : formatBytes(bytes, units);
        }
      };
    }),
    { label: trans.__('Utilisation'), scale: 'percent', show: false }
  ];
}

function withAxes(options: uPlot.Options, capacityBytes: number, hasUtilisation: boolean, units: Units): uPlot.Options {
  const line = themed('--jp-border-color2');
  const axis = {
    stroke: themed('--jp-ui-font-color2'),
    grid: { stroke: line, width: 1 },
    ticks: { show: false },
    font: '12px sans-serif'
  };
  const utilisation: uPlot.Series = {
    label: trans.__('Utilisation'),
    scale: 'percent',
    show: hasUtilisation,
    stroke: themed('--jp-ui-font-color1'),
    dash: [4, 3],
    width: 1.5,
    value: (_, value) => (value === null ? '' : `${Math.round(value)} %`)
  };
  return {
    ...options,
    cursor: { y: false, drag: { x: true, y: false } },
    scales: { ...options.scales, percent: { range: [0, 100] } },
    series: [...options.series.slice(0, -1), utilisation],
    axes: [
      { ...axis, size: 28, values: (_, ticks) => ticks.map(clock) },
      {
        ...axis,
        scale: 'bytes',
        size: 64,
        splits: () => [0, capacityBytes / 2, capacityBytes],
        values: (_, ticks) => ticks.map(tick => formatBytes(tick, units))
      },
      {
        ...axis,
        scale: 'percent',
        side: 1,
        size: 48,
        show: hasUtilisation,
        grid: { show: false },
        splits: () => [0, 50, 100],
        values: (_, ticks) => ticks.map(tick => `${tick} %`)
      }
    ]
  };
}
