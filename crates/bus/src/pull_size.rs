//! How many messages to pull. A message holds several offers where many jobs start; a worker counts its room in offers,
//! but asks for messages.

/// Computes how many messages to pull so that their offers fit the free slots. Messages carry one offer or several; the
/// estimate follows what was seen last.
#[derive(Clone, Copy, Debug)]
pub struct PullSize {
    offers_per_message: f64,
}

/// The most offers that share a message; more would save nothing.
pub const MOST_OFFERS: u32 = 128;
/// The most messages of one pull.
const MOST_MESSAGES: usize = 256;

impl PullSize {
    /// For a caller that must not get more offers than fit: assumes that each message carries the most offers.
    pub fn careful() -> PullSize {
        PullSize { offers_per_message: MOST_OFFERS.into() }
    }

    /// For a caller that gives back surplus offers: assumes that each message carries one offer.
    pub fn bold() -> PullSize {
        PullSize { offers_per_message: 1.0 }
    }

    /// How many messages to pull for this many free slots.
    pub fn messages(&self, free: usize) -> usize {
        if free == 0 {
            return 0;
        }
        let messages = (free as f64 / self.offers_per_message) as usize;
        messages.clamp(1, MOST_MESSAGES)
    }

    /// Records that a pull brought this many offers in this many messages.
    pub fn saw(&mut self, messages: usize, offers: usize) {
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
        let mut pull_size = PullSize::careful();
        assert_eq!(pull_size.messages(0), 0);
        assert_eq!(pull_size.messages(1), 1);
        assert_eq!(pull_size.messages(256), 2, "careful at first");
        assert_eq!(PullSize::bold().messages(64), 64);
        for _ in 0..20 {
            pull_size.saw(4, 4);
        }
        assert!(pull_size.messages(64) >= 63, "one offer a message");
        for _ in 0..20 {
            pull_size.saw(2, 16);
        }
        assert_eq!(pull_size.messages(64), 8);
    }
}
