/** The last hour as charts: memory in use and utilisation, one chart for each device. */

import * as React from 'react';
import uPlot from 'uplot';

import { safeText } from '../describe';
import { formatBytes, Units } from '../format';
import { PageApi, SignInNeededError } from './api';
import { english as trans } from './english';
import { IHistory, readHistory, withGaps } from './history';

/** Milliseconds between two looks at the history, which changes every ten seconds. */
const PERIOD = 30_000;
const HEIGHT = 150;

interface IProps {
  api: PageApi;
  units: Units;
  onSignIn: () => void;
}

/** Nothing where the gateway keeps no history, or has none yet. */
export function HistorySection(props: IProps): React.ReactElement | null {
  const { api, units, onSignIn } = props;
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
  if (histories.length === 0) {
    return null;
  }
  return (
    <section className="sk-Section sk-History" aria-labelledby="sk-history-title">
      <h2 id="sk-history-title" className="sk-Section-title">
        {trans.__('Last hour')}
      </h2>
      {histories.map(history => (
        <Chart key={history.device} history={history} units={units} isNamed={histories.length > 1} />
      ))}
    </section>
  );
}

function Chart(props: { history: IHistory; units: Units; isNamed: boolean }): React.ReactElement {
  const { history, units, isNamed } = props;
  const place = React.useRef<HTMLDivElement>(null);
  const chart = React.useRef<uPlot | null>(null);
  const hour = withGaps(history);
  const data: uPlot.AlignedData = [hour.times, hour.usedBytes, hour.utilisation];
  const latest = React.useRef(data);
  latest.current = data;
  const hasUtilisation = history.utilisation.some(value => value !== null);
  const { capacityBytes } = history;
  React.useEffect(() => {
    const element = place.current;
    if (element === null) {
      return;
    }
    const dark = window.matchMedia('(prefers-color-scheme: dark)');
    const draw = () => {
      chart.current?.destroy();
      const width = element.clientWidth;
      chart.current = new uPlot(options(width, capacityBytes, hasUtilisation, units), latest.current, element);
    };
    draw();
    dark.addEventListener('change', draw);
    const observer = new ResizeObserver(() => {
      chart.current?.setSize({ width: element.clientWidth, height: HEIGHT });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      dark.removeEventListener('change', draw);
      chart.current?.destroy();
      chart.current = null;
    };
  }, [capacityBytes, hasUtilisation, units]);
  React.useEffect(() => chart.current?.setData(latest.current), [history]);
  const highest = Math.max(0, ...history.usedBytes.map(value => value ?? 0));
  const label = trans.__(
    '%1: at most %2 of %3 in use in the last hour',
    safeText(history.device),
    formatBytes(highest, units),
    formatBytes(capacityBytes, units)
  );
  return (
    <div>
      {isNamed && <p className="sk-Strong">{safeText(history.device)}</p>}
      <div ref={place} className="sk-Chart" role="img" aria-label={label} />
    </div>
  );
}

function options(width: number, capacityBytes: number, hasUtilisation: boolean, units: Units): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const text = colour('--jp-ui-font-color2');
  const line = colour('--jp-border-color2');
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: '11px sans-serif' };
  const clock = (seconds: number) => new Date(seconds * 1000).toTimeString().slice(0, 5);
  return {
    width,
    height: HEIGHT,
    cursor: { y: false, drag: { x: true, y: false } },
    scales: { bytes: { range: [0, capacityBytes] }, percent: { range: [0, 100] } },
    axes: [
      { ...axis, size: 26, values: (_, ticks) => ticks.map(clock) },
      {
        ...axis,
        scale: 'bytes',
        size: 60,
        splits: () => [0, capacityBytes / 2, capacityBytes],
        values: (_, ticks) => ticks.map(tick => formatBytes(tick, units))
      },
      {
        ...axis,
        scale: 'percent',
        side: 1,
        size: 44,
        show: hasUtilisation,
        grid: { show: false },
        splits: () => [0, 50, 100],
        values: (_, ticks) => ticks.map(tick => `${tick} %`)
      }
    ],
    series: [
      { label: trans.__('Time'), value: (_, value) => (value === null ? '' : clock(value)) },
      {
        label: trans.__('Memory in use'),
        scale: 'bytes',
        stroke: colour('--jp-brand-color1'),
        fill: colour('--sk-chart-fill'),
        width: 1.5,
        value: (_, value) => (value === null ? '' : formatBytes(value, units))
      },
      {
        label: trans.__('Utilisation'),
        scale: 'percent',
        show: hasUtilisation,
        stroke: colour('--jp-warn-color1'),
        dash: [4, 3],
        width: 1.5,
        value: (_, value) => (value === null ? '' : `${Math.round(value)} %`)
      }
    ]
  };
}
