//! How much to pull. Offers come several to a message where many are started; whoever has room for a number of
//! offers asks for messages.

/// How many messages to pull so that what they carry fits the free slots. Messages carry one offer
/// or several; the guess follows what was seen last.
#[derive(Clone, Copy, Debug)]
pub struct Appetite {
    offers_per_message: f64,
}

/// Most offers that share a message: more saves nothing.
pub const MOST_OFFERS: u32 = 128;
/// Most messages of one pull.
const MOST_MESSAGES: usize = 256;

impl Appetite {
    /// For whoever must not be brought more than fits: as if messages carried as many as they ever do.
    pub fn careful() -> Appetite {
        Appetite { offers_per_message: MOST_OFFERS.into() }
    }

    /// For whoever gives back what is too much: as if each carried one.
    pub fn bold() -> Appetite {
        Appetite { offers_per_message: 1.0 }
    }

    /// How many messages bring so many offers.
    pub fn messages(&self, free: usize) -> usize {
        if free == 0 {
            return 0;
        }
        let messages = (free as f64 / self.offers_per_message) as usize;
        messages.clamp(1, MOST_MESSAGES)
    }

    /// A pull brought so many offers in so many messages.
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
        let mut appetite = Appetite::careful();
        assert_eq!(appetite.messages(0), 0);
        assert_eq!(appetite.messages(1), 1);
        assert_eq!(appetite.messages(256), 2, "careful at first");
        assert_eq!(Appetite::bold().messages(64), 64);
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
