/** One row of a timeline: a session's bars, drawn on a canvas. */

import * as React from 'react';

import { asDrawn, IRow, ISegment, Kind, KINDS, secondsByKind } from './timeline';

/** Pixels of a slice that is still drawn by itself. */
const NARROW = 3;

interface IProps {
  row: IRow;
  /** Seconds since 1970. */
  begin: number;
  end: number;
  /** Of its user. */
  colour: string;
  /** What it shows, in words. */
  label: string;
}

export function Strip(props: IProps): React.ReactElement {
  const { row, begin, end, colour, label } = props;
  const place = React.useRef<HTMLCanvasElement>(null);
  React.useEffect(() => {
    const canvas = place.current;
    if (canvas === null) {
      return;
    }
    const draw = () => drawRow(canvas, row.segments, begin, end, colour);
    draw();
    const dark = window.matchMedia('(prefers-color-scheme: dark)');
    dark.addEventListener('change', draw);
    const observer = new ResizeObserver(draw);
    observer.observe(canvas);
    return () => {
      observer.disconnect();
      dark.removeEventListener('change', draw);
    };
  }, [row, begin, end, colour]);
  return <canvas ref={place} className="sk-Strip" role="img" aria-label={label} />;
}

function drawRow(
  canvas: HTMLCanvasElement,
  segments: readonly ISegment[],
  begin: number,
  end: number,
  colour: string
): void {
  const { clientWidth: width, clientHeight: height } = canvas;
  const pen = canvas.getContext('2d');
  if (pen === null || width === 0) {
    return;
  }
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  pen.scale(ratio, ratio);
  const paints = paintsOf(canvas, pen, colour);
  const scale = width / (end - begin);
  for (const segment of asDrawn(segments, begin, NARROW / scale)) {
    const left = (segment.begin - begin) * scale;
    const wide = Math.max(1, (segment.end - segment.begin) * scale);
    const sums = secondsByKind([segment]);
    let bottom = height;
    for (const kind of KINDS) {
      if (sums[kind] <= 0) {
        continue;
      }
      pen.fillStyle = paints[kind];
      if (kind === 'offloaded') {
        pen.fillRect(left, height - 3, wide, 2);
        continue;
      }
      const part = Math.min(1, sums[kind] / (segment.end - segment.begin)) * height;
      pen.fillRect(left, bottom - part, wide, part);
      bottom -= part;
    }
  }
}

function paintsOf(
  canvas: HTMLCanvasElement,
  pen: CanvasRenderingContext2D,
  colour: string
): Record<Kind, string | CanvasPattern> {
  const style = getComputedStyle(canvas);
  const grey = style.getPropertyValue('--jp-ui-font-color2').trim();
  return {
    running: colour,
    turn: hatched(pen, grey, 5, 1.2),
    memory: hatched(pen, grey, 4, 2.2),
    moving: grey,
    offloaded: grey
  };
}

/** Return diagonal lines as a paint. */
function hatched(pen: CanvasRenderingContext2D, colour: string, step: number, width: number): string | CanvasPattern {
  const tile = document.createElement('canvas');
  const scale = 2;
  tile.width = tile.height = step * scale;
  const drawn = tile.getContext('2d');
  if (drawn === null) {
    return colour;
  }
  drawn.scale(scale, scale);
  drawn.strokeStyle = colour;
  drawn.lineWidth = width;
  for (const shift of [-step, 0, step]) {
    drawn.moveTo(shift - 1, step + 1);
    drawn.lineTo(shift + step + 1, -1);
  }
  drawn.stroke();
  const pattern = pen.createPattern(tile, 'repeat');
  pattern?.setTransform(new DOMMatrix().scale(1 / scale));
  return pattern ?? colour;
}
