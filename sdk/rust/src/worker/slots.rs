//! How many jobs a worker may run at once. A slot is taken before a start is requested and given back when the attempt
//! is over or its start was refused, so the number of running jobs never exceeds the configured one.

/// The count of slots. Taking more than are free is a fault of the caller.
#[derive(Debug)]
pub(super) struct Slots {
    all: usize,
    taken: usize,
}

impl Slots {
    pub(super) fn new(all: usize) -> Slots {
        Slots { all, taken: 0 }
    }

    pub(super) fn free(&self) -> usize {
        self.all - self.taken
    }

    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    pub(super) fn take(&mut self, n: usize) {
        debug_assert!(n <= self.free(), "took {n} of {} free slots", self.free());
        self.taken = (self.taken + n).min(self.all);
    }

    pub(super) fn give(&mut self, n: usize) {
        debug_assert!(n <= self.taken, "gave {n} slots of {} taken", self.taken);
        self.taken = self.taken.saturating_sub(n);
    }
}
