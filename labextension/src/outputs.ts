/**
 * Brings back what cells have shown while no page was there.
 *
 * A page that is reloaded has lost which outputs belong to which cell, so nothing a running cell says arrives any
 * more. The Jupyter server has kept it; here it is put into the cells that ran it, and followed until they have ended.
 */

import type { DocumentRegistry } from '@jupyterlab/docregistry';
import type { IOutput } from '@jupyterlab/nbformat';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import type { Widget } from '@lumino/widgets';

import { Api, IKeptCell } from './api';
import { RefusedError } from './limits';

/** Milliseconds between two looks while cells run that another page has started. */
const INTERVAL = 500;

/** Looks without anything to follow until it is over: a cell that waits behind another begins a moment after its end. */
const QUIET_LOOKS = 3;

/** What a server that refuses for good has kept, as one without the route does; what passes is asked again. */
const nothingIfFinal = (error: unknown): { version: number; cells: IKeptCell[] } | null =>
  error instanceof RefusedError && error.status < 429 ? { version: 0, cells: [] } : null;

/** What a code cell of a notebook needs to have. */
export interface ICell {
  type: string;
  executionCount: number | null;
  executionState: 'idle' | 'running';
  outputs: { fromJSON(outputs: IOutput[]): void };
  sharedModel: { getSource(): string };
  trusted: boolean;
}

/** What answers a question of the kernel's. */
interface IAnswerer {
  hasPendingInput: boolean;
  sendInputReply(content: object, parentHeader: object): void;
}

interface INotebook {
  context: { ready: Promise<void> };
  sessionContext: {
    ready: Promise<void>;
    session: { kernel: ({ id: string; status: string } & IAnswerer) | null } | null;
  };
  model: { cells: Iterable<ICell> } | null;
  content: {
    widgets: ReadonlyArray<{
      model: unknown;
      outputArea?: { onInputRequest(question: object, answerer: IAnswerer): void };
    }>;
  };
}

/**
 * Return which run belongs to which cell: the last one of the same code.
 *
 * Of several cells with the same code none is chosen, unless it still runs: then one of them has to show it.
 */
export function match(cells: Iterable<ICell>, runs: readonly IKeptCell[]): Map<ICell, IKeptCell> {
  const matches = new Map<ICell, IKeptCell>();
  const codeCells = [...cells].filter(cell => cell.type === 'code');
  for (const run of [...runs].reverse()) {
    const same = codeCells.filter(cell => cell.sharedModel.getSource() === run.code);
    const cell = same[0];
    if (cell !== undefined && (same.length === 1 || run.open) && !matches.has(cell)) {
      matches.set(cell, run);
    }
  }
  return matches;
}

/** Put what a run has shown into its cell. */
export function show(cell: ICell, run: IKeptCell): void {
  // The user has run it, in this very kernel.
  cell.trusted = true;
  cell.outputs.fromJSON(run.outputs);
  cell.executionCount = run.open ? null : run.executionCount;
  cell.executionState = run.open ? 'running' : 'idle';
}

/** Looks after each notebook that is opened. */
export class OutputsKeeper implements DocumentRegistry.WidgetExtension {
  constructor(private readonly _api: Api) {}

  createNew(widget: Widget): IDisposable {
    const handle = new DisposableDelegate(() => undefined);
    void this._restore(widget as unknown as INotebook, handle);
    return handle;
  }

  private async _restore(notebook: INotebook, handle: IDisposable): Promise<void> {
    await notebook.context.ready;
    await notebook.sessionContext.ready;
    const kernel = notebook.sessionContext.session?.kernel;
    if (!kernel || handle.isDisposed) {
      return;
    }
    /** Runs that are shown from here, by their cells. */
    const followed = new Map<ICell, string>();
    let version = 0;
    for (let quiet = 0; quiet < QUIET_LOOKS; quiet++) {
      const kept = await this._api.keptCells(kernel.id, version).catch(nothingIfFinal);
      if (handle.isDisposed || notebook.model === null || notebook.sessionContext.session?.kernel?.id !== kernel.id) {
        return;
      }
      for (const [cell, run] of match(notebook.model.cells, kept?.cells ?? [])) {
        const isFollowed = followed.get(cell) === run.id;
        // What this page has run itself arrives by itself.
        const isOwn = cell.executionState === 'running' && !isFollowed;
        // Later on, what waited behind the cells that ran: it may have begun and ended between two looks.
        const isNews = version === 0 ? run.open || run.missed : cell.executionCount !== run.executionCount;
        if (isFollowed || (isNews && !isOwn)) {
          show(cell, run);
          if (run.question) {
            // JupyterLab would drop it, as no request of this page's is behind it.
            kernel.hasPendingInput = true;
            const area = notebook.content.widgets.find(({ model }) => model === cell)?.outputArea;
            area?.onInputRequest(run.question, kernel);
          }
          followed.delete(cell);
          if (run.open) {
            followed.set(cell, run.id);
          }
        }
      }
      version = kept?.version ?? version;
      if (version === 0 && kept !== null) {
        return;
      }
      if (followed.size > 0 || kept === null) {
        quiet = 0;
      }
      await new Promise(resolve => setTimeout(resolve, INTERVAL));
    }
  }
}
