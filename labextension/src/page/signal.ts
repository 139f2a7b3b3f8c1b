/**
 * Lumino's signals, as much of them as the page uses; the build puts this in their place.
 *
 * The library brings its collections along, which would be a seventh of the page.
 */

type Slot = (sender: unknown, args: unknown) => void;

export class Signal {
  static clearData(): void {
    // The page keeps its one model until it is closed.
  }

  constructor(private readonly _sender: unknown) {}

  connect(slot: Slot): boolean {
    this._slots.add(slot);
    return true;
  }

  disconnect(slot: Slot): boolean {
    return this._slots.delete(slot);
  }

  emit(args: unknown): void {
    for (const slot of [...this._slots]) {
      slot(this._sender, args);
    }
  }

  private readonly _slots = new Set<Slot>();
}
