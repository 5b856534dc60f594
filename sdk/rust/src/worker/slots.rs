//! How many jobs a worker may have at once. A slot is taken before a start is asked for and given
//! back when the attempt is over or was not won, so what runs never exceeds what was configured.

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

/// How many messages to pull so that what they carry fits the free slots. Messages carry one offer
/// or several; the guess follows what was seen last.
#[derive(Debug)]
pub(super) struct Appetite {
    offers_per_message: f64,
}

/// A message never carries more offers than this, so a first pull never brings too many.
const MOST_OFFERS: f64 = 8.0;
/// Most messages of one pull.
const MOST_MESSAGES: usize = 256;

impl Appetite {
    pub(super) fn new() -> Appetite {
        Appetite { offers_per_message: MOST_OFFERS }
    }

    pub(super) fn messages(&self, free: usize) -> usize {
        if free == 0 {
            return 0;
        }
        let messages = (free as f64 / self.offers_per_message) as usize;
        messages.clamp(1, MOST_MESSAGES)
    }

    pub(super) fn saw(&mut self, messages: usize, offers: usize) {
        if messages > 0 {
            let seen = (offers as f64 / messages as f64).max(1.0);
            self.offers_per_message = (self.offers_per_message + seen) / 2.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_brings_what_fits_once_the_size_of_messages_is_known() {
        let mut appetite = Appetite::new();
        assert_eq!(appetite.messages(0), 0);
        assert_eq!(appetite.messages(1), 1);
        assert_eq!(appetite.messages(64), 8, "careful at first");
        for _ in 0..20 {
            appetite.saw(4, 4);
        }
        assert!(appetite.messages(64) >= 63, "one offer a message");
        for _ in 0..20 {
            appetite.saw(2, 16);
        }
        assert_eq!(appetite.messages(64), 8);
    }
}
