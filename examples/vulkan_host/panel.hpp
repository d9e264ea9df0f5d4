// Bars and letters as rectangles, which shaders/panel.vert draws as instances.
#ifndef VULKAN_HOST_PANEL_HPP
#define VULKAN_HOST_PANEL_HPP

#include <cctype>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

struct Rectangle { // as shaders/panel.vert reads it
    float x, y, width, height;
    uint32_t colour, pattern; // 0xRRGGBB; a bit for each of 3 by 5 squares
};

class Panel {
  public:
    static constexpr std::size_t kMost = 4096; // rectangles of a frame; others are left out
    static constexpr uint32_t kWhite = 0xe8e8e8, kGrey = 0x707880, kBlue = 0x4aa3ff,
                              kOrange = 0xffa040;

    const std::vector<Rectangle> &rectangles() const { return rectangles_; }
    void clear() { rectangles_.clear(); }

    void bar(float x, float y, float width, float height, uint32_t colour) {
        add({x, y, width, height, colour, 0x7fff});
    }

    // Writes a line as printf does, in letters 9 pixels wide and 15 high.
    void text(float x, float y, uint32_t colour, const char *format, ...) {
        char line[96];
        std::va_list values;
        va_start(values, format);
        std::vsnprintf(line, sizeof line, format, values);
        va_end(values);
        for (const char *letter = line; *letter != 0; letter++, x += 12)
            if (uint32_t pattern = pattern_of(*letter)) add({x, y, 9, 15, colour, pattern});
    }

  private:
    void add(const Rectangle &rectangle) {
        if (rectangles_.size() < kMost) rectangles_.push_back(rectangle);
    }

    // The squares of a letter, row by row; none of one that the font lacks.
    static uint32_t pattern_of(char letter) {
        static constexpr uint32_t digits[] = {0b111'101'101'101'111, 0b010'110'010'010'111,
                                              0b111'001'111'100'111, 0b111'001'111'001'111,
                                              0b101'101'111'001'001, 0b111'100'111'001'111,
                                              0b111'100'111'101'111, 0b111'001'010'010'010,
                                              0b111'101'111'101'111, 0b111'101'111'001'111};
        static constexpr uint32_t letters[] = {
            0b010'101'111'101'101, 0b110'101'110'101'110, 0b011'100'100'100'011,
            0b110'101'101'101'110, 0b111'100'110'100'111, 0b111'100'110'100'100,
            0b011'100'101'101'011, 0b101'101'111'101'101, 0b111'010'010'010'111,
            0b001'001'001'101'010, 0b101'101'110'101'101, 0b100'100'100'100'111,
            0b101'111'111'101'101, 0b110'101'101'101'101, 0b010'101'101'101'010,
            0b110'101'110'100'100, 0b010'101'101'110'011, 0b110'101'110'101'101,
            0b011'100'010'001'110, 0b111'010'010'010'010, 0b101'101'101'101'111,
            0b101'101'101'101'010, 0b101'101'111'111'101, 0b101'101'010'101'101,
            0b101'101'010'010'010, 0b111'001'010'100'111};
        if (letter >= '0' && letter <= '9') return digits[letter - '0'];
        if (std::isalpha(static_cast<unsigned char>(letter)))
            return letters[std::toupper(static_cast<unsigned char>(letter)) - 'A'];
        switch (letter) {
        case '.':
            return 0b000'000'000'000'010;
        case ':':
            return 0b000'010'000'010'000;
        case '%':
            return 0b101'001'010'100'101;
        case '_':
            return 0b000'000'000'000'111;
        case '-':
            return 0b000'000'111'000'000;
        default:
            return 0;
        }
    }

    std::vector<Rectangle> rectangles_;
};

#endif
