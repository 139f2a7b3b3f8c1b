"""Device memory: lanes whose bytes several sessions share by turns, and private memory that can be taken away.

The executor owns physical memory, in *units*; it needs no context on the device and maps nothing. Sessions own
addresses: each maps units where its own tensors are, and changes what is mapped without any tensor noticing. Units
travel as descriptors over a unix socket.

Who does what, from below:

========================  ============================================================================================
`driver`, `cuda_driver`   the calls that everything is built from, and their errors; CUDA's. The tests have a driver of
                          memory files
`layout`                  how a lane and private memory are cut into units
`store`                   the executor's side: creates and counts units, every one in exactly one account;
                          `stored_units`: its records
`mapper`                  changes what is mapped in slots: in all of them, or in none
`arena`                   a session's page table: what each address shows
`offload`                 moves memory out and back page by page, at unchanged addresses
`torch_pool`              torch's allocator over addresses of ours
`segments`                where its segments come from
`generations`             the pools that follow each other over a lane
`lane_memory`             a session's whole: iterations, hand-over, headroom, offload
========================  ============================================================================================

A turn of a session in a lane:

1. The executor has created the lane (:meth:`LaneStore.create_lane`) and grants it. The session takes it:
   :meth:`LaneStore.begin_turn` says whether the lane has to be scrubbed. The lane is occupied.
2. The session fetches the units that it lacks (:meth:`LaneStore.share_lane`, :meth:`LaneStore.exported`) and imports
   them (:meth:`LaneMemory.set_lane`, :meth:`Arena.import_lane`); then :meth:`LaneMemory.begin_turn`.
   `executor/devices/lane_server.py` gives them, `session/lanes/lane_turns.py` fetches them, and
   `executor/processes/fd_server.py` and `ipc/fd_client.py` carry their descriptors.
3. The session calls :meth:`LaneMemory.begin_iteration`, and :meth:`LaneMemory.next_iteration` at each boundary that it
   passes without being asked to stop.
4. It is asked: :meth:`LaneMemory.hand_over` moves what survives to private pages, and the executor, told so, calls
   :meth:`LaneStore.end_turn`.

Private units are asked for through a :class:`Supplier`: :meth:`LaneStore.give_private` and
:meth:`LaneStore.exported` answer it, :meth:`LaneStore.confirm` takes note that the session has them, and
:meth:`LaneStore.take_back` that it has released them. :meth:`LaneStore.session_gone` is for those that ended.

The executor must not import torch, so of this package it imports only modules that do not: `store`, `driver`,
`cuda_driver`, `layout` and `mode`.
"""
