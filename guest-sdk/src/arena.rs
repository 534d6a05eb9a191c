//! Where a guest's first allocations lie: in room that its memory begins with. An instance lives for one
//! call, and few calls need more; for those that do, the memory would have to grow, which costs the host
//! more than the call itself. What finds no room here comes from the standard library's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};

/// Hands out its room from one end to the other. The block that was handed out last can grow and be given
/// back; of the others it is only known how many there are, and once there are none, all of it is free.
#[repr(C, align(16))]
struct Arena<const N: usize> {
    room: UnsafeCell<[u8; N]>,
    /// Bytes handed out.
    used: Cell<usize>,
    /// Blocks not given back.
    blocks: Cell<usize>,
}

// SAFETY: a guest has one thread.
unsafe impl<const N: usize> Sync for Arena<N> {}

// What most calls take, and one page of WebAssembly.
#[cfg(target_arch = "wasm32")]
#[global_allocator]
static ARENA: Arena<{ 64 << 10 }> = Arena::new();

impl<const N: usize> Arena<N> {
    const fn new() -> Self {
        Self {
            room: UnsafeCell::new([0; N]),
            used: Cell::new(0),
            blocks: Cell::new(0),
        }
    }

    /// Where a block begins in the room, if it lies there.
    fn offset(&self, block: *mut u8) -> Option<usize> {
        let offset = block.addr().checked_sub(self.room.get().addr())?;
        (offset < N).then_some(offset)
    }
}

// SAFETY: blocks are handed out from `used` on, which is beyond all of those that were not given back,
// and within the room; what is not of the room is the system's.
unsafe impl<const N: usize> GlobalAlloc for Arena<N> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let base = self.room.get().cast::<u8>();
        let from = base.addr() + self.used.get();
        let begin = from.next_multiple_of(layout.align()) - base.addr();
        match begin.checked_add(layout.size()) {
            Some(end) if end <= N => {
                self.used.set(end);
                self.blocks.set(self.blocks.get() + 1);
                // SAFETY: within the room.
                unsafe { base.add(begin) }
            }
            // SAFETY: as promised by the caller.
            _ => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(offset) = self.offset(block) else {
            // SAFETY: what is not of the room was the system's.
            return unsafe { System.dealloc(block, layout) };
        };
        self.blocks.set(self.blocks.get() - 1);
        if self.blocks.get() == 0 {
            self.used.set(0);
        } else if offset + layout.size() == self.used.get() {
            self.used.set(offset);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(offset) = self.offset(block) else {
            // SAFETY: what is not of the room was the system's.
            return unsafe { System.realloc(block, layout, size) };
        };
        let is_last = offset + layout.size() == self.used.get();
        if size <= layout.size() || (is_last && size <= N - offset) {
            if is_last {
                self.used.set(offset + size);
            }
            return block;
        }
        // SAFETY: the caller promises that the new size fits a layout.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as promised by the caller; the two blocks do not overlap.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(block, layout.size());
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn blocks_lie_in_the_room_and_apart() {
        let arena = Arena::<256>::new();
        let mut blocks = Vec::new();
        for (size, align) in [(1, 1), (3, 2), (8, 8), (5, 1), (32, 16)] {
            let block = unsafe { arena.alloc(layout(size, align)) };
            assert_eq!(block.addr() % align, 0);
            assert!(arena.offset(block).is_some_and(|begin| begin + size <= 256));
            for (begin, end) in &blocks {
                assert!(block.addr() >= *end || block.addr() + size <= *begin);
            }
            blocks.push((block.addr(), block.addr() + size));
        }
    }

    #[test]
    fn the_last_block_grows_where_it_lies_and_others_move_with_what_they_hold() {
        let arena = Arena::<256>::new();
        unsafe {
            let first = arena.alloc(layout(8, 1));
            first.copy_from_nonoverlapping(b"12345678".as_ptr(), 8);
            let last = arena.alloc(layout(8, 1));
            assert_eq!(arena.realloc(last, layout(8, 1), 100), last);
            let moved = arena.realloc(first, layout(8, 1), 16);
            assert_eq!(arena.offset(moved), Some(108));
            assert_eq!(std::slice::from_raw_parts(moved, 8), b"12345678");
            // Given back, the last makes room; the rest does once nothing is left.
            arena.dealloc(moved, layout(16, 1));
            assert_eq!(arena.used.get(), 108);
            arena.dealloc(last, layout(100, 1));
            assert_eq!(arena.used.get(), 0);
        }
    }

    #[test]
    fn what_finds_no_room_is_the_systems() {
        let arena = Arena::<64>::new();
        unsafe {
            let block = arena.alloc(layout(40, 8));
            block.write_bytes(7, 40);
            let beyond = arena.alloc(layout(40, 8));
            assert!(arena.offset(block).is_some() && arena.offset(beyond).is_none());
            let moved = arena.realloc(block, layout(40, 8), 100);
            assert!(arena.offset(moved).is_none());
            assert_eq!(std::slice::from_raw_parts(moved, 40), [7; 40]);
            arena.dealloc(moved, layout(100, 8));
            arena.dealloc(beyond, layout(40, 8));
            assert_eq!((arena.used.get(), arena.blocks.get()), (0, 0));
        }
    }
}
